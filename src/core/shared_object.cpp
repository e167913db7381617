#include "core/shared_object.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <filesystem>
#include <fstream>
#include <link.h>
#include <string_view>
#include <system_error>
#include <unistd.h>

#include "core/format.h"

namespace octofold::core {

SharedObject::SharedObject(const std::string& name)
    : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    error_ = reason != nullptr ? reason : "cannot be opened";
  }
}

SharedObject SharedObject::own_instance(const std::string& name) {
  SharedObject shared(name);
  if (!shared.is_open()) return shared;
  namespace fs = std::filesystem;
  std::error_code failure, ignored;
  const fs::path folder = fs::temp_directory_path(failure);
  if (failure) return without("the folder for temporary files: " + failure.message());
  // Its name stays what debuggers, profilers and tests/tsan.supp know the library by.
  std::string copy = (folder / fs::path(shared.path()).filename()).string() + "-octofold-XXXXXX";
  const int file = mkstemp(copy.data());
  if (file < 0) return without(copy + ": " + std::strerror(errno));
  close(file);
  fs::copy_file(shared.path(), copy, fs::copy_options::overwrite_existing, failure);
  SharedObject own = failure ? without(copy + ": " + failure.message()) : SharedObject(copy);
  fs::remove(copy, ignored);
  return own;
}

SharedObject SharedObject::without(const std::string& error) {
  SharedObject none;
  none.error_ = error;
  return none;
}

std::string SharedObject::path() const {
  const link_map* map = nullptr;
  return dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
}

void* SharedObject::find_symbol(const char* symbol) const {
  return handle_ != nullptr ? dlsym(handle_, symbol) : nullptr;
}

namespace {

template <typename T>
bool read_at(std::ifstream& file, std::uint64_t offset, T& value) {
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(file.read(reinterpret_cast<char*>(&value), sizeof(value)));
}

// The note of a build ID: this, "GNU", the ID.
struct NoteHead {
  Elf64_Nhdr sizes;
  char owner[4];
};

}  // namespace

std::string build_id(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr head{};
  if (!read_at(file, 0, head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return "";
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(file, head.e_phoff + i * sizeof(segment), segment)) return "";
    if (segment.p_type != PT_NOTE) continue;
    NoteHead note{};
    if (!read_at(file, segment.p_offset, note)) return "";
    // Linkers give it a segment of its own, or put it first.
    const bool is_build_id = note.sizes.n_type == NT_GNU_BUILD_ID &&
                             std::string_view(note.owner, sizeof(note.owner)) ==
                                 std::string_view(ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU));
    if (!is_build_id) continue;
    std::string id;
    constexpr std::uint32_t kLongest = 64;
    for (std::uint32_t left = std::min(note.sizes.n_descsz, kLongest); left > 0; --left) {
      const int byte = file.get();
      if (byte == std::ifstream::traits_type::eof()) return "";
      id += core::format("{:02x}", byte);
    }
    return id;
  }
  return "";
}

}  // namespace octofold::core
