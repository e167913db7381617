// Element types of the public API as kernels know them.
#pragma once

#include "octofold/types.h"

#include "kernels/config/element.h"

namespace octofold::cuda {

constexpr config::Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return config::Element::kFloat32;
    case DType::kFloat16: return config::Element::kFloat16;
    case DType::kBFloat16: return config::Element::kBFloat16;
    case DType::kE4M3: return config::Element::kE4M3;
    case DType::kE5M2: return config::Element::kE5M2;
  }
  return {};
}

}  // namespace octofold::cuda
