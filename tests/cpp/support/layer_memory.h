// Recipes of layers, memory of just the size that they ask for, and runs of layers in it. What
// layers compute is tested from Python: its bits are recorded in tests/cases/layer_bits.json.
#pragma once

#include "octofold/cast.h"
#include "octofold/linear.h"
#include "octofold/scaled_matrix.h"

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

// A weight's casts, of which forward reads the rows and backward the transpose.
struct WeightCasts {
  ScaledMatrix rows, transposed;
  WeightCasts(const Matrix& weight, const LinearRecipe& recipe)
      : rows(weight.rows(), weight.cols(), recipe.output.b),
        transposed(weight.cols(), weight.rows(), recipe.grad_input.b) {
    cast(weight.view(), {.rows = rows.target()});
    cast(weight.view(), {.transposed = transposed.target()});
  }
};

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

// The bits of the values of results, by their names: NaN is the same as NaN.
using Results = std::map<std::string, std::vector<std::uint64_t>>;

// A result by its name, if the problem wants it.
struct Result {
  const char* name;
  bool wanted;
  const Matrix& matrix;
};

inline Results values_of(std::initializer_list<Result> results) {
  Results all;
  for (const auto& [name, wanted, matrix] : results) {
    if (!wanted) continue;
    std::vector<std::uint64_t>& values = all[name];
    for (std::int64_t row = 0; row < matrix.rows(); ++row) {
      for (std::int64_t col = 0; col < matrix.cols(); ++col) {
        values.push_back(std::bit_cast<std::uint64_t>(matrix.at(row, col)));
      }
    }
  }
  return all;
}

// A layer's results where it runs both ways in memory of just the size that it asks for, full of
// `held`.
template <auto kMemory, auto kForward, auto kBackward>
Results run(auto& layer, std::byte held) {
  LayerBytes memory(kMemory(layer.problem));
  for (Bytes* bytes : {&memory.kept, &memory.forward, &memory.backward}) {
    std::ranges::fill(bytes->span(), held);
  }
  kForward(layer.problem, layer.forward(memory), {});
  kBackward(layer.problem, layer.backward(memory), {});
  EXPECT_TRUE(memory.is_sealed());
  return layer.results();
}

// The same in memory of zeros and of huge numbers: rows that no token has are such, unless they are
// cleared.
template <auto kMemory, auto kForward, auto kBackward>
Results run(auto& layer) {
  const Results results = run<kMemory, kForward, kBackward>(layer, std::byte{0x7F});
  EXPECT_EQ((run<kMemory, kForward, kBackward>(layer, std::byte{0})), results);
  return results;
}

// Each gradient alone, and none, leave the bits of all results as they are with all of them.
template <typename Problem>
void expect_each_alone(const std::vector<bool Problem::*>& wanted, auto&& make, auto&& run) {
  auto whole = make();
  const Results expected = run(whole);
  for (std::size_t alone = 0; alone <= wanted.size(); ++alone) {
    SCOPED_TRACE(alone);
    auto layer = make();
    for (std::size_t i = 0; i < wanted.size(); ++i) layer.problem.*wanted[i] = i == alone;
    for (const auto& [name, values] : run(layer)) EXPECT_EQ(values, expected.at(name)) << name;
  }
}

}  // namespace octofold::test
