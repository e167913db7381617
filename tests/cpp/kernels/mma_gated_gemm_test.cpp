// Gated products by warps, run on the host, beside a product to BF16 by the same kernels, whose
// activation is cast on the CPU.
#include "support/mma_gemm_on_host.h"  // first: it has CUDA's types
//
#include "octofold/cast.h"
#include "octofold/scale_layout.h"

#include "support/gemm_on_host.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::MmaGemmConfig;
using config::Work;
using enum DType;

constexpr int kColumns = 256;  // of H

// Codes and scales between what nobody may write.
class Result {
 public:
  Result(DType type, int rows) : codes_(type, rows, kColumns, 16), scales_(as_size(2 * rows), -1) {
    scale_ = {scales_.data(), kFloat32, 2, {rows, 2}, {1, rows}};
  }
  CastTarget target(Rule rule) {
    return {codes_.view(), scale_, {.dtype = codes_.dtype(), .rule = rule}};
  }
  MutableTensorView codes_on_gpu() {
    MutableTensorView view = codes_.view();
    view.device = test::kGpu;
    return view;
  }
  MutableTensorView scale_on_gpu() {
    MutableTensorView view = scale_;
    view.device = test::kGpu;
    return view;
  }
  const test::Matrix& codes() const { return codes_; }
  unsigned code(int row, int column) const {
    return codes_.bytes()[as_size(row * (kColumns + 16) + column)];
  }
  float scale(int row, int unit) const { return scales_[as_size(unit * codes_.rows() + row)]; }

 private:
  test::Matrix codes_;
  std::vector<float> scales_;
  MutableTensorView scale_;
};

constexpr config::CastRule kRules[] = {config::kDeepGemmRule, config::kTorchAoRule,
                                       config::kCompressedTensorsRule};
constexpr Rule kNames[] = {Rule::kDeepGemm, Rule::kTorchAo, Rule::kCompressedTensors};

// `plain`: the product to BF16, [rows, 2 · kColumns], gates and ups. The last `unwritten` rows are
// of no group.
template <MmaGemmConfig kGated>
void expect_cast_of_activation(const core::Product& plain, const test::Numbers& both,
                               int unwritten) {
  constexpr int kRule = kGated.gated.rule == kRules[0] ? 0 : kGated.gated.rule == kRules[1] ? 1 : 2;
  constexpr MmaGemmConfig kPlain{.form = {.a = kGated.form.a, .b = kGated.form.b},
                                 .work = kGated.work,
                                 .tile_rows = 32,
                                 .tile_columns = 32,
                                 .row_warps = 2,
                                 .column_warps = 1,
                                 .stages = 2};
  test::run_mma_gemm<kPlain>(plain, 4);
  const int rows = static_cast<int>(both.rows);
  Result expected(kGated.form.out, rows), actual(kGated.form.out, rows);
  const TensorView numbers = matrix<const void>(both.memory.data(), both.type, rows - unwritten,
                                                2 * kColumns, both.stride);
  CastTarget target = expected.target(kNames[kRule]);
  target.data.shape[0] = target.scale.shape[0] = rows - unwritten;
  cast(Activated{.x = numbers, .activation = kGated.gated.activation}, {.rows = target});

  core::Product gated = plain;
  gated.out = actual.codes_on_gpu();
  gated.gated =
      core::GatedEpilogue{.activation = kGated.gated.activation, .scale = actual.scale_on_gpu()};
  test::run_mma_gemm<kGated>(gated, 3);
  int differ = 0;
  for (int row = 0; row < rows; ++row) {
    for (int unit = 0; unit < 2; ++unit) {
      const float scale = expected.scale(row, unit);
      EXPECT_NEAR(actual.scale(row, unit), scale, 0x1p-7f * std::abs(scale)) << row;
    }
    for (int column = 0; column < kColumns; ++column) {
      const auto code = static_cast<int>(actual.code(row, column));
      const auto wanted = static_cast<int>(expected.code(row, column));
      differ += code != wanted;
      ASSERT_LE(std::abs(code - wanted), 1) << row << ", " << column;
    }
  }
  EXPECT_LE(differ, rows * kColumns / 100);
  EXPECT_TRUE(actual.codes().padding_is_untouched());
}

constexpr MmaGemmConfig gated(Work work, int rows, int row_warps, Activation activation,
                              const config::CastRule& rule) {
  return {.form = {.out = activation == Activation::kGeGluTanh ? kE5M2 : kE4M3},
          .gated = {.exists = true, .activation = activation, .rule = rule},
          .work = work,
          .tile_rows = rows,
          .row_warps = row_warps,
          .column_warps = 4,
          .stages = 2};
}

template <MmaGemmConfig kConfig>
void expect_dense(int m) {
  SCOPED_TRACE(m);
  test::GemmProduct<GemmForm{}> product(
      {.m = m, .n = 2 * kColumns, .k = 144, .padding = 0, .out_padding = 0});
  expect_cast_of_activation<kConfig>(product.product(), product.numbers(), 0);
}

TEST(MmaGatedGemmTest, IsTheCastOfTheActivation) {
  using enum Activation;
  expect_dense<gated(Work::kDense, 64, 2, kSwiGlu, config::kDeepGemmRule)>(70);
  expect_dense<gated(Work::kDense, 16, 1, kGeGluTanh, config::kTorchAoRule)>(35);
  expect_dense<gated(Work::kDense, 32, 1, kGeGluErf, config::kCompressedTensorsRule)>(33);
}

TEST(MmaGatedGemmTest, OfGroups) {
  constexpr auto kConfig =
      gated(Work::kGroupedRows, 32, 2, Activation::kSwiGlu, config::kDeepGemmRule);
  test::GemmProduct<GemmForm{}, Work::kGroupedRows> product(
      {.sizes = {34, 0, 1, 17}, .room = 55, .n = 2 * kColumns, .k = 144});
  expect_cast_of_activation<kConfig>(product.product(), product.numbers(), 3);
}

}  // namespace
}  // namespace octofold
