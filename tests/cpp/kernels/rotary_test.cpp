// The kernel of rotary embeddings, run on the host by the parameters that src/cuda makes: the bits
// of the CPU backend, whatever the layout, and nothing written beside y.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/rotary.h"

#include "cuda/params.h"
#include "kernels/rotary/rotary.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Matrix;

constexpr std::int64_t kTablePadding = 8;  // between rows of cos and sin

struct Shape {
  std::int64_t batch, tokens, heads, head_size;
  bool by_heads = false;  // memory has heads before tokens
  std::int64_t batches_of_tables = 1;

  std::int64_t size() const { return batch * tokens * heads * head_size; }
  std::array<std::int64_t, kMaxRank> strides() const {
    const std::int64_t of_batch = tokens * heads * head_size;
    if (by_heads) return {of_batch, head_size, tokens * head_size, 1};
    return {of_batch, heads * head_size, head_size, 1};
  }
};

template <DType kType, bool kVectors, int kThreadsPerToken>
void expect_as_on_cpu(const Shape& shape, std::int64_t offset = 0) {
  constexpr config::RotaryConfig kConfig{
      .type = kType, .vectors = kVectors, .threads_per_token = kThreadsPerToken};
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t of_tables =
      shape.batches_of_tables * shape.tokens * (shape.head_size + kTablePadding);
  const auto numbers = [&](std::int64_t size) { return test::drawn(kType, 1, size, 0, offset); };
  Matrix x = numbers(shape.size()), cos = numbers(of_tables), sin = numbers(of_tables);
  sin.fill([&, i = 0]() mutable { return std::sin(static_cast<float>(++i)); });
  const std::int64_t table_stride = shape.head_size + kTablePadding;
  const auto table = [&](const Matrix& values) {
    return TensorView{values.data(),
                      kType,
                      3,
                      {shape.batches_of_tables, shape.tokens, shape.head_size},
                      {shape.tokens * table_stride, table_stride, 1}};
  };
  for (const bool inverse : {false, true}) {
    Matrix y = numbers(shape.size()), expected = y;
    MutableTensorView to{y.data(),
                         kType,
                         4,
                         {shape.batch, shape.tokens, shape.heads, shape.head_size},
                         Shape(shape.batch, shape.tokens, shape.heads, shape.head_size).strides()};
    RotaryArguments arguments{.x = to, .cos = table(cos), .sin = table(sin), .inverse = inverse};
    arguments.x.data = x.data();
    arguments.x.strides = shape.strides();
    const config::RotaryParams params = cuda::params_of(arguments, to);
    test::launch(
        config::ceil_divide(shape.batch * shape.tokens, std::int64_t{kConfig.tokens_per_block()}),
        kConfig.threads(), [&] { rotary_kernel<kConfig>(params); });
    to.data = expected.data();
    rotary(arguments, to);
    EXPECT_EQ(y.bytes(), expected.bytes()) << shape.heads << " " << shape.head_size << inverse;
  }
}

using enum DType;

TEST(RotaryKernelTest, InVectors) {
  expect_as_on_cpu<kBFloat16, true, 64>({1, 9, 32, 128});
  expect_as_on_cpu<kBFloat16, true, 8>({2, 35, 4, 128, true});
  expect_as_on_cpu<kFloat16, true, 8>({2, 5, 5, 64, false, 2});  // heads that do not fill a thread
  expect_as_on_cpu<kFloat32, true, 128>({1, 3, 33, 256});        // several times a thread
}

TEST(RotaryKernelTest, ElementByElement) {
  expect_as_on_cpu<kBFloat16, false, 4>({2, 7, 3, 50, true, 2});
  expect_as_on_cpu<kFloat16, false, 1>({1, 300, 1, 2});
  expect_as_on_cpu<kFloat32, false, 4>({1, 5, 2, 30}, 1);
  expect_as_on_cpu<kBFloat16, false, 16>({1, 5, 6, 128}, 3);  // not aligned
}

}  // namespace
}  // namespace octofold
