// The transpose of bytes, run on the host by the parameters that src/cuda makes.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cuda/params.h"
#include "kernels/cast/transpose.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::TransposeConfig;
using config::TransposeParams;

constexpr unsigned char kGuard = 0xAA;

template <TransposeConfig kConfig>
void expect_transposes(std::int64_t matrices, std::int64_t rows, std::int64_t cols) {
  SCOPED_TRACE(testing::Message() << matrices << " x " << rows << " x " << cols);
  constexpr std::int64_t kVector = TransposeConfig::kVector;
  const std::int64_t x_stride = cols + kVector, out_stride = rows + kVector;
  std::vector<unsigned char> x(as_size(matrices * rows * x_stride));
  unsigned next = 1;
  for (unsigned char& code : x)
    code = static_cast<unsigned char>((next = next * 1664525 + 7) >> 24);
  std::vector<unsigned char> out(as_size(matrices * cols * out_stride), kGuard);
  std::vector<unsigned char> expected = out;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        expected[as_size((matrix * cols + col) * out_stride + row)] =
            x[as_size((matrix * rows + row) * x_stride + col)];
      }
    }
  }
  const TransposeParams params = cuda::params_of(
      matrix<const void>(x.data(), DType::kE4M3, matrices * rows, cols, x_stride),
      matrix(out.data(), DType::kE4M3, matrices * cols, rows, out_stride), matrices);
  constexpr std::int64_t kTile = TransposeConfig::kTile;
  test::launch(matrices * config::ceil_divide(rows, kTile) * config::ceil_divide(cols, kTile),
               kConfig.threads(), [&] { transpose_kernel<kConfig>(params); });
  EXPECT_EQ(out, expected);
}

TEST(TransposeTest, OfVectors) {
  constexpr TransposeConfig kConfig;
  for (const auto& [matrices, rows, cols] :
       {std::array{1, 128, 128}, {1, 16, 16}, {1, 400, 272}, {3, 144, 304}}) {
    expect_transposes<kConfig>(matrices, rows, cols);
  }
}

TEST(TransposeTest, OfElements) {
  expect_transposes<TransposeConfig{.vector_loads = false, .vector_stores = false}>(2, 131, 259);
  expect_transposes<TransposeConfig{.vector_loads = false, .vector_stores = false}>(1, 1, 1);
  expect_transposes<TransposeConfig{.vector_loads = false}>(2, 48, 130);
  expect_transposes<TransposeConfig{.vector_stores = false}>(2, 130, 48);
}

}  // namespace
}  // namespace octofold
