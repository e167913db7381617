// The products by warps, run on the host by a thread for each of a block's, beside sums in FP64.
#define __align__(bytes)
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "kernels/mma/gemm.h"
#include "support/judge.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::MmaGemmConfig;
using enum DType;
using enum Granularity;

struct Problem {
  int m = 35;
  int n = 33;
  int k = 268;
  int offset = 0;         // of A and B in bytes from a multiple of 16
  int padding = 4;        // between their rows
  bool reversed = false;  // rows of A from the last to the first: a negative stride
  bool one_row = false;   // B's rows are all the same one: a stride of 0
  bool twice = false;     // for the same bits
};

std::size_t at(std::int64_t place) { return as_size(place); }

double value_of(DType type, const void* data, std::int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (type == kFloat32) return static_cast<double>(static_cast<const float*>(data)[index]);
  if (size_of(type) == 2) {
    unsigned short half;
    std::memcpy(&half, bytes + 2 * index, 2);
    return type == kFloat16 ? test::decode_bits(half, 5, 10, 15)
                            : test::decode_bits(half, 8, 7, 127);
  }
  return type == kE4M3 ? test::decode_bits(bytes[index], 4, 3, 7)
                       : test::decode_bits(bytes[index], 5, 2, 15);
}

// Codes in memory full of NaN, which nobody may take for a number, and their scales.
class Codes {
 public:
  Codes(const Operand& operand, int rows, const Problem& problem, bool reversed, bool one_row,
        std::mt19937& random)
      : operand_(operand) {
    const int pitch = problem.k + problem.padding;
    memory_.assign(at(32 + std::int64_t{rows} * pitch), 0xFF);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    unsigned char* first = memory_.data() + (16 - begin % 16) % 16 + problem.offset;
    for (int row = 0; row < rows; ++row) {
      // Of every magnitude up to about 4.
      for (int i = 0; i < problem.k; ++i) {
        const unsigned most = operand.type == kE4M3 ? 0x48 : 0x44;
        first[row * pitch + i] = static_cast<unsigned char>(random() % most | (random() % 2) << 7);
      }
    }
    data_ = first + (reversed ? (rows - 1) * pitch : 0);
    stride_ = one_row ? 0 : reversed ? -pitch : pitch;
    sharers_ = operand.scales == kBlock128x128 ? 128 : 1;
    row_stride_ = operand.scales == kTensor ? 0 : 1;
    k_stride_ = varies_along_k(operand.scales) ? (rows + sharers_ - 1) / sharers_ + 3 : 0;
    scales_.assign(at(rows + (rows + 3) * ((problem.k + 127) / 128)), 0);
    for (float& scale : scales_) scale = 0.5f + static_cast<float>(random() % 1000) / 500;
  }

  config::OperandParams params() const {
    return {.data = data_, .stride = stride_, .scale = {scales_.data(), row_stride_, k_stride_}};
  }
  double value(int row, int k) const {
    const double scale =
        static_cast<double>(scales_[at(row / sharers_ * row_stride_ + k / 128 * k_stride_)]);
    return value_of(operand_.type, data_ + row * stride_, k) * scale;
  }
  unsigned char& code(int row, int k) { return data_[row * stride_ + k]; }

 private:
  Operand operand_;
  std::vector<unsigned char> memory_;
  unsigned char* data_;
  std::int64_t stride_;
  int sharers_;
  std::int64_t row_stride_, k_stride_;
  std::vector<float> scales_;
};

// Numbers of this type, or of FP32, with NaN between the rows.
struct Numbers {
  Numbers(DType type_, int rows, int columns, int padding)
      : type(type_), stride(columns + padding) {
    memory.assign(at(rows * stride * size_of(type)), 0xFF);
  }
  void fill(int rows, int columns, std::mt19937& random) {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        const float value = static_cast<float>(random() % 64) / 8 - 4;  // exact in all types
        const std::int64_t place = row * stride + column;
        if (type == kFloat32) {
          std::memcpy(&memory[at(4 * place)], &value, 4);
        } else {
          const unsigned pair =
              type == kFloat16 ? pack_pair<kFloat16>(value, 0) : pack_pair<kBFloat16>(value, 0);
          std::memcpy(&memory[at(2 * place)], &pair, 2);
        }
      }
    }
  }
  double value(std::int64_t row, std::int64_t column) const {
    return value_of(type, memory.data(), row * stride + column);
  }

  DType type;
  std::int64_t stride;
  std::vector<unsigned char> memory;
};

constexpr DType type_of(Addend addend, DType out) {
  return addend == Addend::kFloat32 ? kFloat32 : out;
}

template <MmaGemmConfig kConfig>
void expect_product(const Problem& problem = {}) {
  static_assert(kConfig.invalid_reason() == nullptr);
  constexpr GemmForm kForm = kConfig.form;
  const auto& [m, n, k, offset, padding, reversed, one_row, twice] = problem;
  SCOPED_TRACE(testing::Message() << m << "×" << n << "×" << k << ", " << name(kForm.a.scales)
                                  << " × " << name(kForm.b.scales));
  test::Random random;
  Codes a(kForm.a, m, problem, reversed, false, random);
  Codes b(kForm.b, n, problem, false, one_row, random);
  Numbers out(kForm.out, m, n, 3), c(type_of(kForm.c, kForm.out), m, n, 5);
  Numbers bias(type_of(kForm.bias, kForm.out), 1, n, 0);
  c.fill(m, n, random);
  bias.fill(1, n, random);
  std::vector<float> factors(at(n));
  for (float& factor : factors) factor = std::exp2f(static_cast<float>(random() % 5));
  if (k > 200) a.code(m / 2, 200) = 0x7F;  // NaN: of one row, and no other

  const config::GemmParams params{.rows = a.params(),
                                  .columns = b.params(),
                                  .out = out.memory.data(),
                                  .out_stride = out.stride,
                                  .c = c.memory.data(),
                                  .c_stride = c.stride,
                                  .bias = bias.memory.data(),
                                  .channel_scale = factors.data(),
                                  .work = {.rows = m, .columns = n, .depth = k}};
  const auto run = [&] {
    ptx::shared.fill(0xFF);
    const auto tiles =
        config::ceil_divide(m, kConfig.tile_rows) * config::ceil_divide(n, kConfig.tile_columns);
    test::launch(tiles, kConfig.threads(), [&] {
      mma::multiply_tile<kConfig>(params, mma::tile_of_block<kConfig>(params.work), 0);
    });
  };
  run();

  test::Judge judge(kForm.out);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double expected = 0, terms = 0;
      for (int i = 0; i < k; ++i) {
        const double product = a.value(row, i) * b.value(column, i);
        expected += product;
        terms += std::abs(product);
      }
      const double factor = kForm.b_channel_scale ? static_cast<double>(factors[at(column)]) : 1;
      expected *= factor, terms *= factor;
      for (const auto& [kind, value] : {std::pair{kForm.c, c.value(row, column)},
                                        std::pair{kForm.bias, bias.value(0, column)}}) {
        if (kind == Addend::kNone) continue;
        expected += value;
        terms += std::abs(value);
      }
      const double actual = out.value(row, column);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(actual)) << row << ", " << column;
      } else {
        judge.see(actual, expected, terms);
      }
    }
    for (int i = 0; i < 3 * size_of(kForm.out); ++i) {
      const std::int64_t place = (row * out.stride + n) * size_of(kForm.out) + i;
      EXPECT_EQ(out.memory[at(place)], 0xFF) << "behind row " << row;
    }
  }
  EXPECT_EQ(judge.verdict(), "");
  if (!twice) return;
  const std::vector<unsigned char> before = out.memory;
  run();
  EXPECT_EQ(out.memory, before) << "other bits the second time";
}

// Two warps, which share A's rows out.
constexpr MmaGemmConfig small(const GemmForm& form, int load_bytes = 4) {
  return {.form = form,
          .tile_rows = 32,
          .tile_columns = 32,
          .row_warps = 2,
          .column_warps = 1,
          .stages = 2,
          .load_bytes = load_bytes};
}

template <Granularity kA, Granularity kB>
void expect_pair() {
  expect_product<small({.a = {kE4M3, kA}, .b = {kE5M2, kB}, .out = kFloat32})>();
}

template <Granularity kA>
void expect_pairs() {
  expect_pair<kA, kTensor>();
  expect_pair<kA, kChannel>();
  expect_pair<kA, kBlock1x128>();
  expect_pair<kA, kBlock128x128>();
}

TEST(MmaGemmKernelTest, EveryPairOfGranularities) {
  expect_pairs<kTensor>();
  expect_pairs<kChannel>();
  expect_pairs<kBlock1x128>();
  expect_pairs<kBlock128x128>();
}

TEST(MmaGemmKernelTest, AddendsAndTypes) {
  constexpr Operand kE5{kE5M2, kChannel};
  expect_product<small({.a = kE5, .b = kE5, .c = Addend::kOutputType, .bias = Addend::kFloat32})>();
  expect_product<small({.a = kE5,
                        .b = {kE4M3, kBlock1x128},
                        .out = kFloat16,
                        .c = Addend::kFloat32,
                        .bias = Addend::kOutputType})>();
  expect_product<small({.out = kFloat32,
                        .c = Addend::kOutputType,
                        .bias = Addend::kOutputType,
                        .b_channel_scale = true})>();
}

TEST(MmaGemmKernelTest, SumsInTheTensorCore) {
  constexpr GemmForm kFast{
      .a = {kE4M3, kTensor}, .b = {kE4M3, kChannel}, .out = kFloat32, .fast_accumulation = true};
  expect_product<small(kFast)>();
}

// Whole tiles of the planner's kinds: several sub-tiles and columns to a warp, warps side by side,
// more stages than the ring has, scales of two blocks of columns.
TEST(MmaGemmKernelTest, TilesOfThePlanner) {
  constexpr GemmForm kForm{.out = kFloat32};
  expect_product<MmaGemmConfig{.form = kForm,
                               .tile_rows = 64,
                               .tile_columns = 64,
                               .row_warps = 2,
                               .column_warps = 2,
                               .stages = 2}>({.m = 64, .n = 70, .k = 400, .padding = 0});
  expect_product<MmaGemmConfig{.form = kForm,
                               .tile_rows = 16,
                               .tile_columns = 128,
                               .row_warps = 1,
                               .column_warps = 4,
                               .stages = 5}>({.m = 5, .n = 130, .k = 688, .padding = 16});
  expect_product<MmaGemmConfig{.form = kForm}>({.m = 100, .n = 120, .k = 144, .padding = 0});
}

TEST(MmaGemmKernelTest, ShortAndRagged) {
  constexpr MmaGemmConfig kBytes = small({.out = kFloat32}, 1);
  for (const int k : {0, 1, 127, 129}) {
    expect_product<kBytes>({.m = 1, .n = 33, .k = k, .offset = k % 16, .padding = 3});
    expect_product<kBytes>({.m = 33, .n = 1, .k = k, .offset = 5, .padding = 0});
  }
}

// Rows of 16 bytes that K does not fill.
TEST(MmaGemmKernelTest, UnitsThatEndWithK) {
  expect_product<small({.out = kFloat32}, 16)>({.k = 137, .padding = 7});
  expect_product<small({.out = kFloat32}, 4)>({.k = 140, .offset = 4, .padding = 8});
}

TEST(MmaGemmKernelTest, AnyStride) {
  expect_product<small({.out = kFloat32}, 1)>({.padding = 1, .reversed = true, .twice = true});
  expect_product<small({.out = kFloat32}, 4)>({.padding = 0, .reversed = true, .one_row = true});
}

}  // namespace
}  // namespace octofold
