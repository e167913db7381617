// The gradient by routing weights of an activation and the gradient by it, run on the host beside
// the CPU backend.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/routing.h"

#include "cpu/backend.h"
#include "kernels/routing/activation_dots.h"
#include "kernels/shared/arithmetic.h"
#include "support/routing_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::draw;
using test::Floats;
using test::index_of;
using test::kRows;
using test::kTokens;
using test::Positions;
using test::stored;

template <config::ActivationDotsConfig kConfig>
void expect_dots(std::int64_t slots, std::int64_t cols) {
  static_assert(kConfig.invalid_reason() == nullptr);
  constexpr DType kIn = kConfig.in;
  const std::int64_t features = is_gated(kConfig.activation) ? 2 * cols : cols;
  const std::int64_t stride = features + 16;
  const auto x = stored<kIn>(draw(as_size(kRows * stride)));
  const auto gradient = stored<kIn>(draw(as_size(kRows * cols)));
  Positions positions(kTokens, slots, kRows);
  Floats out(as_size(kTokens * (slots + 1)), -7), expected = out;
  const config::ActivationDotsParams params{.gradient = gradient.data(),
                                            .gradient_stride = cols,
                                            .x = x.data(),
                                            .x_stride = stride,
                                            .rows = kRows,
                                            .cols = cols,
                                            .positions = positions.given.data(),
                                            .positions_stride = slots,
                                            .tokens = kTokens,
                                            .slots = static_cast<int>(slots),
                                            .dots = out.data(),
                                            .dots_stride = slots + 1};
  const std::int64_t blocks = config::ceil_divide(kTokens * slots, std::int64_t{kConfig.kSlots});
  test::launch(blocks, kConfig.threads(), [&] { activation_dots_kernel<kConfig>(params); });
  cpu::activation_dots(
      {.gradient = matrix(gradient.data(), kIn, kRows, cols),
       .x = matrix(x.data(), kIn, kRows, features, stride),
       .positions = TensorView(index_of(positions.plain, kTokens, slots)),
       .activation = kConfig.activation,
       .dots = matrix(expected.data(), DType::kFloat32, kTokens, slots, slots + 1)});
  for (std::size_t i = 0; i < out.size(); ++i) {
    // Values are up to 16, or 16 · 5 of the curves.
    EXPECT_NEAR(out[i], expected[i], 1e-5f * static_cast<float>(cols));
  }
  for (std::int64_t i = 0; i < kTokens * slots; ++i) {
    const std::int64_t at = i / slots * (slots + 1) + i % slots;
    EXPECT_TRUE(positions.plain[as_size(i)] >= 0 || out[as_size(at)] == 0);
  }
}

TEST(ActivationDotsKernelTest, IsNearTheCpus) {
  using enum DType;
  expect_dots<{.in = kBFloat16}>(3, 768);
  expect_dots<{.in = kFloat16, .activation = Activation::kSwiGluOss}>(2, 520);
  expect_dots<{.in = kFloat32, .activation = Activation::kGelu}>(1, 260);
  expect_dots<{.in = kBFloat16, .activation = Activation::kGeGluTanh, .vectors = false}>(3, 77);
  expect_dots<{.in = kFloat32, .activation = Activation::kReluSquared, .vectors = false}>(2, 3);
}

}  // namespace
}  // namespace octofold
