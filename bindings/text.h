// Strings of the two libraries.
#pragma once

#include <string_view>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

namespace octofold::bindings {

using OptionalText = tvm::ffi::Optional<tvm::ffi::String>;

inline std::string_view view_of(const tvm::ffi::String& text) { return {text.data(), text.size()}; }

}  // namespace octofold::bindings
