// A shared object that is opened at run time, so that the library loads where it is missing.
#pragma once

#include <string>

namespace octofold::core {

class SharedObject {
 public:
  /// Opens a file or soname; on failure error() says why. Never closed: libcuda and NVRTC keep
  /// state that must outlive every user.
  explicit SharedObject(const std::string& name);

  bool is_open() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  /// The function, or null where this version of the object lacks it.
  template <typename Function>
  Function* find(const char* symbol) const {
    return reinterpret_cast<Function*>(find_symbol(symbol));
  }

 private:
  void* find_symbol(const char* symbol) const;

  void* handle_;
  std::string error_;
};

}  // namespace octofold::core
