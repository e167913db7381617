// Shared objects that are opened at run time, so that the library loads where they are missing.
#pragma once

#include <string>

namespace octofold::core {

class SharedObject {
 public:
  /// Opens a file or soname; on failure error() says why. Never closed: libcuda and NVRTC keep
  /// state that must outlive every user.
  explicit SharedObject(const std::string& name);

  /// The same, as an instance that nobody else in the process has, with variables of its own: the
  /// dynamic linker takes a copy of the file for another object. The copy is made in the folder for
  /// temporary files, and is gone from there when this returns.
  static SharedObject own_instance(const std::string& name);

  bool is_open() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  /// The function, or null where this version of the object lacks it.
  template <typename Function>
  Function* find(const char* symbol) const {
    return reinterpret_cast<Function*>(find_symbol(symbol));
  }

 private:
  SharedObject() = default;
  static SharedObject without(const std::string& error);
  void* find_symbol(const char* symbol) const;
  std::string path() const;

  void* handle_ = nullptr;
  std::string error_;
};

/// The GNU build ID of an ELF file in hexadecimal digits; empty where the file is none, has none or
/// cannot be read. Format: elf(5), "Notes (Nhdr)", NT_GNU_BUILD_ID.
std::string build_id(const std::string& file);

}  // namespace octofold::core
