// Strings of the two libraries.
#pragma once

#include <string>
#include <string_view>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

namespace octofold::bindings {

using OptionalText = tvm::ffi::Optional<tvm::ffi::String>;

inline std::string_view view_of(const tvm::ffi::String& text) { return {text.data(), text.size()}; }

/// The name of a candidate of a product's kernels; empty where there is none.
inline std::string candidate_of(const OptionalText& candidate) {
  return candidate ? std::string(view_of(*candidate)) : std::string();
}

}  // namespace octofold::bindings
