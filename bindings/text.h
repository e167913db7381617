// Strings of the two libraries.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

namespace octofold::bindings {

using OptionalText = tvm::ffi::Optional<tvm::ffi::String>;

inline std::string_view view_of(const tvm::ffi::String& text) { return {text.data(), text.size()}; }

/// A path comes and goes as its bytes, which need not be UTF-8.
inline std::filesystem::path path_of(const tvm::ffi::Bytes& name) {
  return std::string(name.data(), name.size());
}
inline tvm::ffi::Bytes bytes_of(const std::filesystem::path& path) {
  return tvm::ffi::Bytes(path.string());
}

/// Text that may name such a path: U+FFFD for what Python could not decode.
tvm::ffi::String as_utf8(std::string_view text);

/// The name of a candidate of a product's kernels; empty where there is none.
inline std::string candidate_of(const OptionalText& candidate) {
  return candidate ? std::string(view_of(*candidate)) : std::string();
}

}  // namespace octofold::bindings
