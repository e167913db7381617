// Recipes of layers, memory of just the size that they ask for, and what they are to compute.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "octofold/linear.h"

#include "support/matrix.h"
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

// A result by its name, if the problem wants it.
struct Result {
  const char* name;
  bool wanted;
  const Matrix& matrix;
};
using Results = std::vector<std::pair<std::string, std::vector<std::uint8_t>>>;

inline Results bytes_of(std::initializer_list<Result> results) {
  Results all;
  for (const auto& [name, wanted, matrix] : results) {
    if (wanted) all.emplace_back(name, matrix.bytes());
  }
  return all;
}

// Overwrites a layer's results with those of public functions one after another, which are to be
// the same.
template <typename Layer>
void expect_as_apart(Layer& layer) {
  const Results found = layer.results();
  layer.compute_apart();
  const Results expected = layer.results();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].second, expected[i].second) << found[i].first;
  }
}

// Expects it of a layer that runs both ways in memory of just the size that it asks for, full of
// huge numbers: rows that no token has are such, unless they are cleared.
template <auto kMemory, auto kForward, auto kBackward, typename Layer>
void expect_parts(Layer& layer) {
  LayerBytes memory(kMemory(layer.problem));
  for (Bytes* bytes : {&memory.kept, &memory.forward, &memory.backward}) {
    std::ranges::fill(bytes->span(), std::byte{0x7F});
  }
  kForward(layer.problem, layer.forward(memory), {});
  kBackward(layer.problem, layer.backward(memory), {});
  EXPECT_TRUE(memory.is_sealed());
  expect_as_apart(layer);
}

// The same with each gradient alone, and with none.
template <typename Problem, typename Make, typename Expect>
void with_each_alone(const std::vector<bool Problem::*>& wanted, Make&& make, Expect&& expect) {
  for (std::size_t alone = 0; alone <= wanted.size(); ++alone) {
    SCOPED_TRACE(alone);
    auto layer = make();
    for (std::size_t i = 0; i < wanted.size(); ++i) layer.problem.*wanted[i] = i == alone;
    expect(layer);
  }
}

}  // namespace octofold::test
