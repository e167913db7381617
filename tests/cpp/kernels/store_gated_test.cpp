// Shared memory and scales as the epilogue of gated products leaves them: the kernel's own code, by
// a fiber for each thread, against the cast of the activation.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/cast.h"
#include "octofold/convert_dtype.h"

#include "kernels/sm90/gated.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold::sm90 {
namespace {

constexpr int kColumns = 128;

constexpr Sm90GemmConfig config_of(Activation activation, DType out, const config::CastRule& rule) {
  return {.form = {.out = out}, .gated = {.exists = true, .activation = activation, .rule = rule}};
}

// The accumulators of a thread for one tile, gates and ups; scales.h says where they lie.
template <Sm90GemmConfig kConfig>
void take_sums(const test::Matrix& both, Accumulators<kConfig>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int sub_tile = 0; sub_tile < 2; ++sub_tile) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = first_row_of_thread<kConfig>() + 8 * (i / 2 % 2);
      const int column = 8 * (i / 4) + i % 2 + 2 * (lane % 4);
      sums[sub_tile][i] = static_cast<float>(both.at(row, sub_tile * kColumns + column));
    }
  }
}

template <Sm90GemmConfig kConfig>
void run_all_warps(const Sm90GemmParams& params, const Tile& tile, const test::Matrix& both) {
  test::launch(1, kConfig.consumer_threads(), [&] {
    Accumulators<kConfig> sums;
    take_sums<kConfig>(both, sums);
    WriteGated<kConfig>::write(params, SharedMemory<kConfig>{0}, tile, 0, sums);
  });
}

constexpr Tile tile_at(int row, int column, int row_end, int column_end) {
  return {.group = 0,
          .operand_row = row,
          .operand_column = column,
          .row = row,
          .column = column,
          .row_end = row_end,
          .column_end = column_end,
          .k_begin = 0,
          .k_end = 128};
}

// Checks `rows` rows in a tile that begins at (row, column) of H. Scales of rows that are not
// there, and of other tiles, stay as they were.
template <Activation kActivation, DType kOut, config::CastRule kRule>
void check(Rule rule, int rows) {
  SCOPED_TRACE(testing::Message() << name(kActivation) << " " << name(kOut) << " " << name(rule)
                                  << ", " << rows << " rows");
  constexpr Sm90GemmConfig kConfig = config_of(kActivation, kOut, kRule);
  static_assert(kConfig.invalid_reason() == nullptr);
  constexpr int kRow = 256, kColumn = 3 * kColumns;
  test::Random random;
  const test::Matrix both = test::random_matrix(random, kConfig.tile_rows, 2 * kColumns);

  constexpr float kUntouched = -1;
  constexpr int kScaleColumns = 5;
  const int row_end = kRow + rows;
  std::vector<float> scales(as_size(kScaleColumns * (kRow + 128)), kUntouched);
  Sm90GemmParams params{};
  params.out_scale = {.data = scales.data(), .row_stride = 1, .column_stride = kRow + 128};
  ptx::shared.fill(0xFF);
  run_all_warps<kConfig>(params, tile_at(kRow, kColumn, row_end, kScaleColumns * kColumns), both);

  // The operations one after another. (On the CPU in FP64.)
  test::Matrix rounded(DType::kBFloat16, rows, 2 * kColumns), codes(kOut, rows, kColumns);
  test::Matrix expected_scales(DType::kFloat32, rows, 1);
  convert_dtype(matrix(both.data(), DType::kFloat32, rows, 2 * kColumns), rounded.view());
  cast(Activated{.x = rounded.view(), .activation = kActivation},
       {.rows = CastTarget{codes.view(), expected_scales.view(), {.dtype = kOut, .rule = rule}}});

  int differ = 0;
  for (int row = 0; row < rows; ++row) {
    const float scale = scales[as_size(3 * (kRow + 128) + kRow + row)];
    EXPECT_NEAR(scale, expected_scales.at(row, 0), 0x1p-7 * expected_scales.at(row, 0)) << row;
    for (int column = 0; column < kColumns; ++column) {
      // TMA reads a box under the 128-byte swizzle in this way.
      const int place = row * 128 + (column / 16 ^ row % 8) * 16 + column % 16;
      const int code = ptx::shared[as_size(place)];
      const int expected = codes.bytes()[as_size(row * kColumns + column)];
      differ += code != expected;
      ASSERT_LE(std::abs(code - expected), 1) << row << ", " << column;
    }
  }
  EXPECT_LE(differ, rows * kColumns / 100);
  const auto untouched = std::ranges::count(scales, kUntouched);
  EXPECT_EQ(untouched, std::ssize(scales) - rows);
}

TEST(StoreGatedTest, IsTheCastOfTheActivation) {
  using enum Activation;
  for (const int rows : {128, 1, 16, 37, 64, 70, 127}) {
    check<kSwiGlu, DType::kE4M3, config::kDeepGemmRule>(Rule::kDeepGemm, rows);
    check<kGeGluTanh, DType::kE5M2, config::kDeepSeekRule>(Rule::kDeepSeek, rows);
    check<kGeGluErf, DType::kE4M3, config::kTorchAoRule>(Rule::kTorchAo, rows);
    check<kSwiGluOss, DType::kE4M3, config::kDeepGemmRule>(Rule::kDeepGemm, rows);
    check<kSwiGlu, DType::kE5M2, config::kCompressedTensorsRule>(Rule::kCompressedTensors, rows);
  }
}

// A cluster's last tile may lie outside of H: nothing is written.
TEST(StoreGatedTest, NothingIsWrittenOfATileOutside) {
  constexpr Sm90GemmConfig kConfig =
      config_of(Activation::kSwiGlu, DType::kE4M3, config::kDeepGemmRule);
  test::Random random;
  const test::Matrix both = test::random_matrix(random, 128, 2 * kColumns);
  ptx::shared.fill(0xFF);
  const Sm90GemmParams params{};  // no scales to write to
  run_all_warps<kConfig>(params, tile_at(0, 256, 128, 256), both);
  run_all_warps<kConfig>(params, tile_at(128, 0, 128, 256), both);
  EXPECT_TRUE(std::ranges::all_of(ptx::shared, [](unsigned char byte) { return byte == 0xFF; }));
}

}  // namespace
}  // namespace octofold::sm90
