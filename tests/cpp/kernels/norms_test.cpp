// The kernels of norms and of their gradients, run on the host by the parameters that src/cuda
// makes, beside the CPU backend. Rows of operands lie apart, each operand's by another distance.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cpu/backend.h"
#include "cuda/params.h"
#include "kernels/norm/backward.h"
#include "kernels/norm/gradients.h"
#include "kernels/norm/rows.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::NormBackwardConfig;
using config::NormForm;
using config::NormOperand;
using config::NormOutput;
using config::NormRowConfig;
using config::NormSums;
using test::drawn;
using test::expect_near;
using test::Matrix;
using enum DType;

constexpr std::int64_t kRows = 12, kBatches = 3;

// The operands of a norm. Those that modulate are of batches, 4 rows each.
struct Operands {
  Operands(const NormForm& form, DType in, std::int64_t cols) {
    const auto add = [&](NormOperand operand, std::int64_t rows, std::int64_t padding) {
      std::optional<Matrix> added;
      if (operand != NormOperand::kNone) {
        added = drawn(operand == NormOperand::kFloat32 ? kFloat32 : in, rows, cols, padding);
      }
      return added;
    };
    weight = add(form.weight, 1, 0), bias = add(form.bias, 1, 0);
    scale = add(form.scale, kBatches, 40), shift = add(form.shift, kBatches, 48);
  }
  NormOperands view() const {
    NormOperands operands;
    if (weight) operands.weight = weight->row_vector();
    if (bias) operands.bias = bias->row_vector();
    if (scale) operands.ada_scale = scale->view();
    if (shift) operands.ada_shift = shift->view();
    return operands;
  }

  std::optional<Matrix> weight, bias, scale, shift;
};

// The results of a norm.
struct Results {
  Results(DType in, std::int64_t cols)
      : sum(drawn(in, kRows, cols, 24)), y(drawn(in, kRows, cols, 32)) {}

  Normed of(Normed source) {
    if (source.residual) source.sum = sum.view();
    source.rstd = rstd.row_vector();
    if (source.kind == NormKind::kLayer) source.mean = mean.row_vector();
    return source;
  }

  Matrix sum, y, rstd = drawn(kFloat32, 1, kRows), mean = rstd;
};

float near_one_rounding(DType type, float value) {
  const float unit = type == kFloat32 ? 1e-5f : type == kFloat16 ? 0x1p-9f : 0x1p-6f;
  return unit * std::max(std::abs(value), 1.0f);
}

template <NormRowConfig kConfig>
void expect_norm(std::int64_t cols) {
  constexpr DType kIn = kConfig.format.in;
  const Matrix x = drawn(kIn, kRows, cols, 8), residual = drawn(kIn, kRows, cols, 16);
  const Operands operands(kConfig.form, kIn, cols);
  Normed source{.kind = kConfig.form.kind, .epsilon = 0.25f, .x = x.view()};
  source.operands = operands.view();
  if (kConfig.adds_residual) source.residual = residual.view();
  Results actual(kIn, cols), expected = actual;
  const MutableTensorView y = actual.y.view();
  const config::NormParams params = cuda::params_of(actual.of(source), &y, std::nullopt);
  test::launch(config::ceil_divide(kRows, std::int64_t{kConfig.rows_per_block()}),
               kConfig.threads(), [&] { norm_row_kernel<kConfig>(params); });
  cpu::normalize(expected.of(source), expected.y.view());
  EXPECT_EQ(actual.sum.bytes(), expected.sum.bytes());
  const auto rounded = [](float value) { return near_one_rounding(kFloat32, value); };
  expect_near(actual.rstd, expected.rstd, rounded);
  expect_near(actual.mean, expected.mean, rounded);
  expect_near(actual.y, expected.y, [](float value) { return near_one_rounding(kIn, value); });
}

constexpr NormForm kPlain{.weight = NormOperand::kInputType};
constexpr NormForm kLayer{.kind = NormKind::kLayer,
                          .weight = NormOperand::kFloat32,
                          .bias = NormOperand::kInputType,
                          .scale = NormOperand::kInputType,
                          .shift = NormOperand::kFloat32};

TEST(NormKernelTest, Numbers) {
  expect_norm<{.form = kPlain,
               .adds_residual = true,
               .output = NormOutput::kNumbers,
               .threads_per_row = 32,
               .vectors_per_thread = 2}>(264);
  expect_norm<{.form = kLayer,
               .output = NormOutput::kNumbers,
               .format = {.in = kFloat32},
               .threads_per_row = 64,
               .early_operands = true}>(520);
  expect_norm<{.form = kLayer,
               .adds_residual = true,
               .output = NormOutput::kNumbers,
               .format = {.in = kFloat16},
               .vector_loads = false,
               .threads_per_row = 32,
               .vectors_per_thread = 1,
               .reread = true}>(301);
}

// Codes of the same numbers and scales, but for numbers that lie between two codes.
template <NormRowConfig kConfig>
void expect_codes(std::int64_t cols) {
  constexpr DType kIn = kConfig.format.in;
  const Matrix x = drawn(kIn, kRows, cols, 8);
  const Operands operands(kConfig.form, kIn, cols);
  Normed source{.kind = kConfig.form.kind, .epsilon = 0.25f, .x = x.view()};
  source.operands = operands.view();
  const bool blocks = varies_along_k(kConfig.format.granularity);
  const std::int64_t units = blocks ? config::ceil_divide(cols, kScaleBlock) : 1;
  struct Target {
    Target(std::int64_t cols, std::int64_t units)
        : codes(kE4M3, kRows, cols, 24), scales(drawn(kFloat32, units, kRows, 3)) {}
    CastTarget view(Granularity granularity) {
      CastTarget target{codes.view(), scales.row_vector(), {.granularity = granularity}};
      if (!varies_along_k(granularity)) return target;
      target.scale = scales.view();  // column by column
      std::swap(target.scale.shape[0], target.scale.shape[1]);
      std::swap(target.scale.strides[0], target.scale.strides[1]);
      return target;
    }
    Matrix codes, scales;
  };
  Target actual(cols, units), expected = actual;
  Results results(kIn, cols), on_cpu = results;
  const Granularity granularity = kConfig.format.granularity;
  const config::NormParams params =
      cuda::params_of(results.of(source), nullptr, actual.view(granularity));
  test::launch(config::ceil_divide(kRows, std::int64_t{kConfig.rows_per_block()}),
               kConfig.threads(), [&] { norm_row_kernel<kConfig>(params); });
  cpu::cast(on_cpu.of(source), {.rows = expected.view(granularity)}, kConfig.format);
  expect_near(actual.scales, expected.scales,
              [](float value) { return near_one_rounding(kIn, value); });
  std::int64_t differ = 0;
  for (std::size_t i = 0; i < actual.codes.bytes().size(); ++i) {
    const int code = actual.codes.bytes()[i], wanted = expected.codes.bytes()[i];
    ASSERT_LE(std::abs(code - wanted), 1) << i;
    differ += code != wanted;
  }
  EXPECT_LE(differ, kRows * cols / 50);
}

TEST(NormKernelTest, Codes) {
  expect_codes<{.form = kPlain, .threads_per_row = 32, .vectors_per_thread = 2}>(264);
  expect_codes<{.form = kLayer,
                .format = {.in = kFloat32, .granularity = Granularity::kChannel},
                .threads_per_row = 64,
                .vectors_per_thread = 2}>(136);
}

// The gradients by all that a norm has.
template <NormBackwardConfig kConfig>
void expect_gradients(std::int64_t cols) {
  static_assert(kConfig.sums_products && kConfig.sums_offsets);
  constexpr DType kIn = kConfig.in;
  constexpr NormForm kForm = kConfig.form;
  constexpr bool kModulates = kForm.scale != NormOperand::kNone;
  const Matrix dy = drawn(kIn, kRows, cols, 8), x = drawn(kIn, kRows, cols, 16),
               residual = drawn(kIn, kRows, cols, 24);
  const Operands operands(kForm, kIn, cols);
  Normed source{.kind = kForm.kind, .x = x.view()};
  source.operands = operands.view();
  Results forward(kIn, cols);
  cpu::normalize(forward.of(source), forward.y.view());
  NormGradientArguments arguments{.kind = kForm.kind,
                                  .gradient = dy.view(),
                                  .x = x.view(),
                                  .rstd = std::as_const(forward.rstd).row_vector(),
                                  .operands = operands.view()};
  if (kForm.centres()) arguments.mean = std::as_const(forward.mean).row_vector();
  if (kConfig.adds_gradient) arguments.residual_gradient = residual.view();
  struct Gradients {
    explicit Gradients(std::int64_t cols)
        : dx(drawn(kIn, kRows, cols, 32)),
          by_cols(drawn(kFloat32, 2, cols)),
          by_scale(drawn(kFloat32, kBatches, cols, 8)),
          by_shift(drawn(kFloat32, kBatches, cols, 24)) {}
    Matrix dx, by_cols, by_scale, by_shift;
  } actual(cols), expected = actual;
  const std::int64_t batches = kModulates ? kBatches : 1;
  std::vector<float> workspace(as_size(2 * config::norm_spans(cols, batches) * cols), NAN);
  const auto view = [&](Gradients& gradients) {
    const MutableTensorView by_cols = gradients.by_cols.view();
    auto* const second = static_cast<float*>(by_cols.data) + cols;
    NormGradients view{
        .dx = gradients.dx.view(),
        .dweight = vector(by_cols.data, kFloat32, cols),
        .dbias = vector(static_cast<void*>(second), kFloat32, cols),
        .workspace = matrix(workspace.data(), kFloat32, std::ssize(workspace) / cols, cols)};
    if (kModulates) {
      view.d_ada_scale = gradients.by_scale.view();
      view.d_ada_shift = gradients.by_shift.view();
    }
    return view;
  };
  constexpr std::int64_t kSpan = 3;  // rows of a block
  const std::int64_t blocks = config::ceil_divide(kRows / batches, kSpan);
  const config::NormBackwardParams params = cuda::params_of(
      arguments, view(actual), {.rows_per_block = kSpan, .blocks_per_batch = blocks});
  static_assert(kConfig.invalid_reason() == nullptr);
  test::launch(batches * blocks, kConfig.threads(), [&] { norm_backward_kernel<kConfig>(params); });
  constexpr auto kGradients = [](bool by_batch) {
    return config::NormGradientConfig{.form = kForm,
                                      .in = kIn,
                                      .by_batch = by_batch,
                                      .sums_offsets = true,
                                      .columns = kModulates ? 8 : 32};
  };
  const std::int64_t across = config::ceil_divide<std::int64_t>(cols, kGradients(false).columns);
  test::launch(across, kGradients(false).threads(),
               [&] { norm_gradient_kernel<kGradients(false)>(params); });
  if constexpr (kModulates) {
    test::launch(across * batches, kGradients(true).threads(),
                 [&] { norm_gradient_kernel<kGradients(true)>(params); });
  }
  cpu::norm_gradient(arguments, view(expected));
  expect_near(actual.dx, expected.dx,
              [](float value) { return 4 * near_one_rounding(kIn, value); });
  const auto of_sums = [](float value) { return 1e-4f * std::max(std::abs(value), 10.0f); };
  expect_near(actual.by_cols, expected.by_cols, of_sums);
  expect_near(actual.by_scale, expected.by_scale, of_sums);
  expect_near(actual.by_shift, expected.by_shift, of_sums);
}

TEST(NormKernelTest, Gradients) {
  expect_gradients<{
      .form = kPlain, .adds_gradient = true, .sums_offsets = true, .row_threads = 32}>(264);
  expect_gradients<{.form = kLayer,
                    .in = kFloat32,
                    .sums_offsets = true,
                    .row_threads = 64,
                    .vectors_per_thread = 4}>(520);
  expect_gradients<{.form = kLayer,
                    .in = kFloat16,
                    .adds_gradient = true,
                    .sums_offsets = true,
                    .vectors = false,
                    .row_threads = 32,
                    .vectors_per_thread = 1,
                    .chunks = 2,
                    .sums = NormSums::kWorkspace}>(301);
  expect_gradients<{.form = kLayer,
                    .sums_offsets = true,
                    .row_threads = 64,
                    .vectors_per_thread = 1,
                    .sums = NormSums::kShared}>(392);
  expect_gradients<{.form = kPlain,
                    .in = kFloat32,
                    .adds_gradient = true,
                    .sums_offsets = true,
                    .row_threads = 32,
                    .vectors_per_thread = 2,
                    .chunks = 3,
                    .sums = NormSums::kShared}>(612);
}

}  // namespace
}  // namespace octofold
