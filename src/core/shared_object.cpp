#include "core/shared_object.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <system_error>
#include <unistd.h>

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

}  // namespace octofold::core
