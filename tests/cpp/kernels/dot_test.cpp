// The kernels of the dot product, run on the host by the parameters that src/cuda makes, beside the
// CPU backend and sums in FP64.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/dot.h"

#include "cpu/backend.h"
#include "cuda/params.h"
#include "kernels/dot/dot.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Matrix;

// A vector that begins `offset` elements behind an aligned address, and its scales.
class Operand {
 public:
  Operand(DType type, std::int64_t size, std::int64_t offset, bool blocks)
      : values_(type, 1, size, 0, offset), blocks_(blocks) {
    for (std::int64_t i = 0; i <= size / kScaleBlock * scale_stride(); ++i) {
      scales_.push_back(std::exp2f(static_cast<float>(i % 7) - 3));
    }
  }

  Matrix& values() { return values_; }
  DotOperand view() const {
    DotOperand operand{.data = values_.view()};
    if (is_fp8(values_.dtype())) {
      const std::int64_t count = blocks_ ? config::ceil_divide(values_.cols(), kScaleBlock) : 1;
      operand.scale = matrix(scales_.data(), DType::kFloat32, 1, count);
      operand.scale->strides[1] = scale_stride();
      operand.granularity = blocks_ ? Granularity::kBlock1x128 : Granularity::kTensor;
    }
    return operand;
  }
  double at(std::int64_t i) const {
    const auto block = as_size(blocks_ ? i / kScaleBlock * scale_stride() : 0);
    return values_.at(0, i) * (is_fp8(values_.dtype()) ? double{scales_[block]} : 1);
  }

 private:
  std::int64_t scale_stride() const { return values_.dtype() == DType::kE4M3 ? 3 : 2; }

  Matrix values_;
  bool blocks_;
  std::vector<float> scales_;
};

template <config::DotConfig kConfig>
float run(const DotOperand& a, const DotOperand& b) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t parts = config::dot_parts(a.data.shape[1]);
  std::vector<float> part_sums(as_size(parts), NAN);
  float out = NAN;
  const config::DotParams params =
      cuda::params_of({.a = a,
                       .b = b,
                       .out = vector(&out, DType::kFloat32, 1),
                       .workspace = vector(part_sums.data(), DType::kFloat32, parts)});
  EXPECT_EQ(params.a_blocks, kConfig.a_blocks);
  EXPECT_EQ(params.b_blocks, kConfig.b_blocks);
  if (parts <= 1) {
    constexpr config::DotConfig kAlone = [] {
      config::DotConfig alone = kConfig;
      alone.alone = true;
      return alone;
    }();
    test::launch(1, kConfig.threads(), [&] { dot_kernel<kAlone>(params); });
  } else {
    test::launch(parts, kConfig.threads(), [&] { dot_kernel<kConfig>(params); });
    constexpr config::DotPartsConfig kParts;
    test::launch(1, kParts.threads(), [&] { add_dot_parts_kernel<kParts>(params); });
  }
  return out;
}

template <config::DotConfig kConfig>
void expect_dot(std::int64_t size, std::int64_t offset = 0) {
  test::Random random;
  Operand a(kConfig.a, size, offset, kConfig.a_blocks),
      b(kConfig.b, size, offset, kConfig.b_blocks);
  for (Operand* drawn : {&a, &b}) drawn->values().fill([&] { return test::draw_number(random); });
  double expected = 0, terms = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    expected += a.at(i) * b.at(i);
    terms += std::abs(a.at(i) * b.at(i));
  }
  const float actual = run<kConfig>(a.view(), b.view());
  EXPECT_NEAR(actual, expected, 2e-6 * terms) << size;
  float on_cpu = NAN;
  cpu::dot(
      {.a = a.view(), .b = b.view(), .out = vector(&on_cpu, DType::kFloat32, 1), .workspace = {}});
  EXPECT_NEAR(on_cpu, expected, 2e-6 * terms) << size;
  EXPECT_EQ(std::bit_cast<unsigned>(run<kConfig>(a.view(), b.view())),
            std::bit_cast<unsigned>(actual));
}

using enum DType;
constexpr std::int64_t kSizes[] = {0, 1, 15, 127, 128, 129, 4096, 8192, 8193, 20'000};

TEST(DotKernelTest, OfCodes) {
  for (const std::int64_t size : kSizes) {
    expect_dot<{.a = kE4M3, .b = kE4M3}>(size);
    expect_dot<{.a = kE4M3, .b = kE5M2, .a_blocks = true}>(size);
    expect_dot<{.a = kE5M2, .b = kE4M3, .a_blocks = true, .b_blocks = true}>(size);
  }
}

TEST(DotKernelTest, OfCodesAndWiderNumbers) {
  for (const std::int64_t size : kSizes) {
    expect_dot<{.a = kE4M3, .b = kFloat32, .a_blocks = true}>(size);
    expect_dot<{.a = kFloat16, .b = kE5M2}>(size);
    expect_dot<{.a = kBFloat16, .b = kFloat16}>(size);
    expect_dot<{.a = kFloat32, .b = kFloat32}>(size);
  }
}

TEST(DotKernelTest, OfWhatIsNotAligned) {
  for (const std::int64_t size : {1, 130, 8300}) {
    expect_dot<{.a = kE4M3, .b = kE4M3, .b_blocks = true, .vectors = false}>(size, 1);
    expect_dot<{.a = kE5M2, .b = kFloat32, .vectors = false}>(size, 3);
  }
}

}  // namespace
}  // namespace octofold
