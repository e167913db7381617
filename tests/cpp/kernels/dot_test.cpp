// The kernels of the dot product, run on the host, beside the CPU backend and sums in FP64.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/dot.h"

#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "kernels/dot/dot.h"
#include "support/test.h"

namespace octofold {
namespace {

using Floats = std::vector<float>;

Floats draw(std::size_t count) {
  test::Random random;
  Floats values(count);
  for (float& value : values)
    value = static_cast<float>(static_cast<int>(random() % 8192)) / 999 - 4;
  return values;
}

// A vector in memory that begins `offset` elements behind an aligned address, with NaN around it.
template <DType kType>
class Operand {
 public:
  using T = numeric::Storage<kType>;

  Operand(std::int64_t size, std::int64_t offset, bool blocks, const Floats& values)
      : offset_(offset), size_(size), blocks_(blocks) {
    const Floats nan(values.size() + 32, NAN);
    memory_.resize(nan.size());
    cpu::store(nan.data(), std::ssize(nan), memory_.data(), kType, 0, Overflow::kNan);
    cpu::store(values.data(), size, memory_.data(), kType, offset, Overflow::kNan);
    for (std::int64_t i = 0; i <= size / kScaleBlock; ++i) {
      scales_.push_back(std::exp2f(static_cast<float>(i % 7) - 3));
    }
  }

  const T* data() const { return memory_.data() + offset_; }
  T* data() { return memory_.data() + offset_; }
  const float* scale() const { return is_fp8(kType) ? scales_.data() : nullptr; }
  DotOperand view() const {
    DotOperand operand{.data = matrix(data(), kType, 1, size_)};
    if constexpr (is_fp8(kType)) {
      const std::int64_t count = blocks_ ? (size_ + kScaleBlock - 1) / kScaleBlock : 1;
      operand.scale = matrix(scales_.data(), DType::kFloat32, 1, count);
      operand.granularity = blocks_ ? Granularity::kBlock1x128 : Granularity::kTensor;
    }
    return operand;
  }
  double at(std::int64_t i) const {
    float value = 0;
    cpu::load(data(), kType, i, 1, 1, &value);
    const auto block = as_size(blocks_ ? i / kScaleBlock : 0);
    return double{value} * (is_fp8(kType) ? scales_[block] : 1);
  }

 private:
  std::vector<T> memory_;
  std::int64_t offset_, size_;
  bool blocks_;
  Floats scales_;
};

template <config::DotConfig kConfig, typename A, typename B>
float run(const A& a, const B& b, std::int64_t size) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t parts = std::max(config::dot_parts(size), 1ll);
  Floats part_sums(as_size(parts), NAN);
  float out = NAN;
  const config::DotParams params{.a = a.data(),
                                 .b = b.data(),
                                 .a_scale = a.scale(),
                                 .b_scale = b.scale(),
                                 .a_scale_stride = 1,
                                 .b_scale_stride = 1,
                                 .a_blocks = kConfig.a_blocks,
                                 .b_blocks = kConfig.b_blocks,
                                 .size = size,
                                 .span = config::dot_span(size),
                                 .parts = static_cast<int>(parts),
                                 .part_sums = part_sums.data(),
                                 .out = &out};
  if (parts == 1) {
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
  const Floats a_values = draw(as_size(size));
  Floats b_values = a_values;
  for (std::size_t i = 0; i < b_values.size(); ++i) b_values[i] = 0.5f - b_values[i] / 3;
  const Operand<kConfig.a> a(size, offset, kConfig.a_blocks, a_values);
  const Operand<kConfig.b> b(size, offset, kConfig.b_blocks, b_values);
  double expected = 0, terms = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    expected += a.at(i) * b.at(i);
    terms += std::abs(a.at(i) * b.at(i));
  }
  const float actual = run<kConfig>(a, b, size);
  EXPECT_NEAR(actual, expected, 2e-6 * terms) << size;
  float on_cpu = NAN;
  cpu::dot(
      {.a = a.view(), .b = b.view(), .out = vector(&on_cpu, DType::kFloat32, 1), .workspace = {}});
  EXPECT_NEAR(on_cpu, expected, 2e-6 * terms) << size;
  EXPECT_EQ(std::bit_cast<unsigned>(run<kConfig>(a, b, size)), std::bit_cast<unsigned>(actual));
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

// Each code by 1, all others by 0.
template <DType kFp8>
void expect_each_code() {
  constexpr config::DotConfig kConfig{.a = kFp8, .b = kFp8};
  for (unsigned code = 0; code < 256; code += 5) {
    Floats zeros(100, 0.0f);
    Operand<kFp8> a(100, 0, false, zeros), b(100, 0, false, zeros);
    a.data()[77] = static_cast<unsigned char>(code);
    b.data()[77] = kFp8 == kE4M3 ? 0x38 : 0x3C;  // 1
    const double expected = a.at(77) * b.at(77);
    const float actual = run<kConfig>(a, b, 100);
    if (expected != expected) {
      EXPECT_NE(actual, actual) << code;
    } else {
      EXPECT_EQ(actual, expected) << code;
    }
  }
}

TEST(DotKernelTest, CodesAreExact) {
  expect_each_code<kE4M3>();
  expect_each_code<kE5M2>();
}

}  // namespace
}  // namespace octofold
