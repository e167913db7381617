// Codes of FP8 weights as wgmma's first operand, where TMA has left them in shared memory, beside
// what the PTX ISA says of that operand.
#include <set>

#include "octofold/types.h"

#include "kernels/numeric/vector.h"
#include "kernels/weight_only_sm90/weights.h"
#include "support/test.h"

namespace octofold::weight_only_sm90 {
namespace {

using config::Sm90WeightOnlyConfig;

// A code of its own for each place nearly, none of them NaN; e5m2 is the upper byte of FP16.
unsigned code_at(int column, int depth) {
  return static_cast<unsigned>(column * 37 + depth * 11 + depth / 16) % 0x7B;
}

template <Sm90WeightOnlyConfig kConfig>
void fill_stage() {
  for (int column = 0; column < kConfig.tile_columns; ++column) {
    for (int depth = 0; depth < kScaleBlock; ++depth) {
      // The 128-byte swizzle: units of 16 bytes change places by the number of their row.
      const int row = kConfig.transposed ? depth : column;
      const int byte = kConfig.transposed ? column % 128 : depth;
      const int rows = kConfig.transposed ? column / 128 * kScaleBlock + row : row;
      const int place = rows * 128 + (byte / 16 ^ row % 8) * 16 + byte % 16;
      ptx::shared[as_size(place)] = static_cast<unsigned char>(code_at(column, depth));
    }
  }
}

template <Sm90WeightOnlyConfig kConfig, typename FactorsOf, typename Expected>
void expect_operands(FactorsOf&& factors_of, Expected&& expected) {
  static_assert(kConfig.invalid_reason() == nullptr);
  fill_stage<kConfig>();
  for (unsigned thread = 0; thread < 128; ++thread) {
    threadIdx.x = thread;
    const Lane lane;
    const Weights<kConfig> weights;
    for (int first_column = 0; first_column < kConfig.tile_columns; first_column += 64) {
      for (int first = 0; first < 8; first += kConfig.products_at_once()) {
        Codes<kConfig> codes;
        Operands<kConfig> operands;
        weights.load(0, first_column, first, codes);
        decode(codes, factors_of(lane, first), operands);
        for (int i = 0; i < 8 * kConfig.products_at_once(); ++i) {
          const int r = i % 8 / 2, depth = 16 * (first + i / 8) + 2 * lane.c + r / 2 * 8 + i % 2;
          const int column = first_column + column_of<kConfig>(lane, r % 2);
          float values[2];
          numeric::widen<DType::kFloat16>(&operands.a[i / 8][r], values);
          ASSERT_EQ(values[i % 2], expected(column, depth))
              << "thread " << thread << " column " << column << " depth " << depth;
        }
      }
    }
  }
}

float value_at(int column, int depth) {
  const unsigned half = code_at(column, depth) << 8;
  float value[2];
  numeric::widen<DType::kFloat16>(&half, value);
  return value[0];
}

constexpr Sm90WeightOnlyConfig kStraight{
    .w = DType::kE5M2, .x = DType::kFloat16, .out = DType::kFloat16, .stages = 2};
constexpr Sm90WeightOnlyConfig kTransposed = [] {
  Sm90WeightOnlyConfig config = kStraight;
  config.transposed = true;
  config.tile_columns = 256;
  config.tile_rows = 64;
  return config;
}();
constexpr Sm90WeightOnlyConfig kWithFactors = [] {
  Sm90WeightOnlyConfig config = kTransposed;
  config.depth_factors = true;
  return config;
}();

TEST(Sm90WeightsTest, OfColumns) {
  expect_operands<kStraight>([](const Lane&, int) { return NoFactors(); }, value_at);
}

TEST(Sm90WeightsTest, OfTheDepth) {
  expect_operands<kTransposed>([](const Lane&, int) { return NoFactors(); }, value_at);
}

TEST(Sm90WeightsTest, FactorsAreOfTheLanesColumns) {
  const auto factors = [](const Lane& lane, int) {
    return ColumnFactors{.exist = true,
                         .of_columns = {column_of<kStraight>(lane, 0) % 2 == 0 ? 2.0f : 0.5f,
                                        column_of<kStraight>(lane, 1) % 2 == 0 ? 2.0f : 0.5f}};
  };
  expect_operands<kStraight>(factors, [](int column, int depth) {
    const float product = value_at(column, depth) * (column % 2 == 0 ? 2.0f : 0.5f);
    return product > 65504 ? INFINITY : product;
  });
}

TEST(Sm90WeightsTest, FactorsAreOfTheDepth) {
  constexpr unsigned kFactors = kWithFactors.w_bytes();
  for (int depth = 0; depth < kScaleBlock; ++depth) {
    ptx::store_shared_word(kFactors + 4 * static_cast<unsigned>(depth),
                           __float_as_uint(depth % 3 == 0 ? 0.25f : 0.5f));
  }
  expect_operands<kWithFactors>(
      [](const Lane& lane, int first) {
        return DepthFactors{kFactors + 4 * static_cast<unsigned>(16 * first + 2 * lane.c)};
      },
      [](int column, int depth) {
        return value_at(column, depth) * (depth % 3 == 0 ? 0.25f : 0.5f);
      });
}

// Each of the 64 columns of a sub-tile is a row of the instruction.
TEST(Sm90WeightsTest, ColumnsAreRowsOfTheInstruction) {
  std::set<int> straight, transposed;
  for (unsigned thread = 0; thread < 128; ++thread) {
    threadIdx.x = thread;
    for (int upper = 0; upper < 2; ++upper) {
      straight.insert(column_of<kStraight>(Lane(), upper));
      transposed.insert(column_of<kTransposed>(Lane(), upper));
    }
  }
  EXPECT_EQ(straight.size(), 64u);
  EXPECT_EQ(*straight.rbegin(), 63);
  EXPECT_EQ(transposed, straight);
}

}  // namespace
}  // namespace octofold::weight_only_sm90
