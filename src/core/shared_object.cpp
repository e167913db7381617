#include "core/shared_object.h"

#include <dlfcn.h>

namespace octofold::core {

SharedObject::SharedObject(const std::string& name)
    : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    error_ = reason != nullptr ? reason : "cannot be opened";
  }
}

void* SharedObject::find_symbol(const char* symbol) const {
  return handle_ != nullptr ? dlsym(handle_, symbol) : nullptr;
}

}  // namespace octofold::core
