// Configurations' values in the words of the public API, for logs and errors.
#pragma once

#include <string_view>

#include "kernels/config/cast_config.h"
#include "kernels/config/gemm_config.h"

namespace octofold::plan {

constexpr std::string_view word(config::Element element) {
  using enum config::Element;
  switch (element) {
    case kFloat32: return "float32";
    case kFloat16: return "float16";
    case kBFloat16: return "bfloat16";
    case kE4M3: return "e4m3";
    case kE5M2: return "e5m2";
  }
  return "?";
}

/// The granularity.
constexpr std::string_view word(config::ScaleUnit unit) {
  using enum config::ScaleUnit;
  switch (unit) {
    case kTensor: return "tensor";
    case kChannel: return "channel";
    case kBlock1x128: return "1x128";
    case kBlock128x128: return "128x128";
  }
  return "?";
}

/// The granularities of A and B.
constexpr std::string_view words(config::GemmScaling scaling) {
  using enum config::GemmScaling;
  switch (scaling) {
    case kTensor: return "tensor";
    case kChannel: return "channel";
    case kBlock: return "1x128 and 128x128";
    case kBlockByBlock: return "1x128";
  }
  return "?";
}

}  // namespace octofold::plan
