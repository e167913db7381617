// Recipes of layers, and memory of just the size that they ask for.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "octofold/linear.h"

#include "support/test.h"

namespace octofold::test {

inline constexpr Format kRows{.rule = Rule::kTorchAo};
constexpr Format with(Granularity granularity, DType dtype = DType::kE4M3) {
  return {.dtype = dtype, .granularity = granularity, .rule = Rule::kTorchAo};
}

inline const LinearRecipe kBlockwise{
    .output = {.a = kRows, .b = with(Granularity::kBlock128x128)},
    .grad_input = {.a = kRows, .b = with(Granularity::kBlock128x128)},
    .grad_weight = {.a = kRows, .b = with(Granularity::kChannel)}};
inline const LinearRecipe kTensorwise{
    .output = {.a = with(Granularity::kTensor), .b = with(Granularity::kTensor)},
    .grad_input = {.a = with(Granularity::kTensor, DType::kE5M2), .b = with(Granularity::kTensor)},
    .grad_weight = {.a = with(Granularity::kTensor, DType::kE5M2),
                    .b = with(Granularity::kTensor)}};

// Bytes of just that size, behind and before which none may be written.
class Bytes {
 public:
  explicit Bytes(std::int64_t size) : bytes_(static_cast<std::size_t>(size) + 2 * kGuard, kSeal) {}
  std::span<std::byte> span() {
    return std::span(bytes_).subspan(kGuard, bytes_.size() - 2 * kGuard);
  }
  bool is_sealed() const {
    const auto is_seal = [](std::byte byte) { return byte == kSeal; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, is_seal) &&
           std::all_of(bytes_.end() - kGuard, bytes_.end(), is_seal);
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  static constexpr std::byte kSeal{0xA5};
  std::vector<std::byte> bytes_;
};

// The memory that a problem says it takes.
struct LayerBytes {
  explicit LayerBytes(const LayerMemory& memory)
      : size(memory), kept(size.kept), forward(size.forward), backward(size.backward) {}
  bool is_sealed() const { return kept.is_sealed() && forward.is_sealed() && backward.is_sealed(); }

  LayerMemory size;
  Bytes kept, forward, backward;
};

}  // namespace octofold::test
