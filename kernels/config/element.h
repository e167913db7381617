// Element types as kernels know them.
#pragma once

namespace octofold::config {

enum class Element { kFloat32, kFloat16, kBFloat16, kE4M3, kE5M2 };

constexpr int size_of(Element element) {
  switch (element) {
    case Element::kFloat32: return 4;
    case Element::kFloat16:
    case Element::kBFloat16: return 2;
    case Element::kE4M3:
    case Element::kE5M2: return 1;
  }
  return 0;
}

constexpr bool is_fp8(Element element) {
  return element == Element::kE4M3 || element == Element::kE5M2;
}

}  // namespace octofold::config
