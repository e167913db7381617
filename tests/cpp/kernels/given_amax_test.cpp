// Casts by largest magnitudes that are given, run on the host, beside the CPU backend's: the
// same bytes, for values far beyond them too.
#include "octofold/cast_targets.h"

#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "cpu/cast.h"
#include "support/test.h"

namespace octofold::cast {
namespace {

using config::CastRule;
using config::ScaleStep;

// Most are about as large as the values; some are tiny, so that these overflow, zero, infinite or
// negative.
std::vector<float> magnitudes_of(std::int64_t units) {
  std::vector<float> amax = random_factors(units);
  const float specials[] = {0.0f, 1e-42f, 1e-38f, 1e-20f, -3.0f, 3e38f, HUGE_VALF};
  for (std::size_t i = 0; i < std::size(specials) && 3 * i + 1 < amax.size(); ++i) {
    amax[3 * i + 1] = specials[i];
  }
  return amax;
}

// Some of them infinite or NaN, and as large as they come.
template <DType kIn>
std::vector<Storage<kIn>> far_values(std::int64_t rows, std::int64_t cols) {
  auto x = random_values<kIn>(rows, cols);
  const float specials[] = {HUGE_VALF, -HUGE_VALF, std::nanf(""), 65504.0f, -3e38f, -0.0f, 1e-42f};
  for (std::size_t i = 0; i < 40 * std::size(specials); ++i) {
    const auto at = static_cast<std::int64_t>(i * 61 % x.size());
    cpu::store(&specials[i % std::size(specials)], 1, x.data(), kIn, at, Overflow::kNan);
  }
  return x;
}

// Returns the unit whose amax is given: that of the transpose alone, beside rows of 1x128.
constexpr Granularity long_unit(const config::CastFormat& format) {
  return format.granularity == kBlock1x128 ? kChannel : format.granularity;
}

template <config::TileCastConfig kConfig>
constexpr ScaleStepConfig step_of(ScaleStep step) {
  config::CastFormat format = kConfig.format;
  format.granularity = long_unit(format);
  return {.format = format,
          .step = step,
          .to_rows = kConfig.to_rows && kConfig.format.granularity == format.granularity,
          .to_transposed = kConfig.to_transposed};
}

template <config::TileCastConfig kConfig>
void expect_cpu_bytes(std::int64_t rows, std::int64_t cols, float tensor = 2.5f) {
  constexpr config::CastFormat kFormat = kConfig.format;
  constexpr Granularity kLong = long_unit(kFormat);
  const auto x = far_values<kFormat.in>(rows, cols);
  std::vector<float> of_rows{tensor}, of_columns{tensor / 3};
  if (kLong == kChannel) {
    of_rows = magnitudes_of(rows);
    of_columns = magnitudes_of(cols);
  }
  Target to_rows(kFormat.granularity, rows, cols), to_columns(kLong, cols, rows);
  Target cpu_rows = to_rows, cpu_columns = to_columns;
  CastParams params{};
  params.x = x.data();
  params.x_stride = cols;
  params.rows = rows;
  params.cols = cols;
  params.row_target = to_rows.target();
  params.transposed_target = to_columns.target();
  params.row_amax = {of_rows.data(), 1};
  params.transposed_amax = {of_columns.data(), 1};
  launch<step_of<kConfig>(ScaleStep::kTake)>(params);
  launch<kConfig>(params);
  launch<step_of<kConfig>(ScaleStep::kFinish)>(params);

  const auto view = [](Target& target, const std::vector<float>& amax) {
    CastTarget view = target.view();
    if (!varies_along_k(view.format.granularity)) {
      view.amax = vector(amax.data(), DType::kFloat32, std::ssize(amax));
    }
    return view;
  };
  CastTargets out;
  if (kConfig.to_rows) out.rows = view(cpu_rows, of_rows);
  if (kConfig.to_transposed) out.transposed = view(cpu_columns, of_columns);
  cpu::cast_values(matrix<const void>(x.data(), kFormat.in, rows, cols), out, kFormat);
  to_rows.expect_same(cpu_rows);
  to_columns.expect_same(cpu_columns);
}

// Returns the configuration that the planner has for it: another kernel for rules that divide.
template <DType kIn, CastRule kRule, Granularity kGranularity, bool kRows, bool kTransposed>
constexpr config::TileCastConfig config_of() {
  return {.format = {.in = kIn, .granularity = kGranularity, .rule = kRule},
          .phase = kGranularity == kBlock1x128 ? CastPhase::kWholeRows : CastPhase::kEncode,
          .amax_given = kRule.arithmetic == config::CastArithmetic::kDivide ||
                        (kGranularity == kTensor && kRows && kTransposed),
          .to_rows = kRows,
          .to_transposed = kTransposed,
          .vector_loads = false,
          .vector_stores = false,
          .group_m = 2};
}

template <DType kIn, CastRule kRule>
void expect_cpu_bytes() {
  expect_cpu_bytes<config_of<kIn, kRule, kBlock1x128, true, true>()>(131, 141);
  expect_cpu_bytes<config_of<kIn, kRule, kChannel, true, true>()>(131, 141);
  expect_cpu_bytes<config_of<kIn, kRule, kChannel, true, false>()>(131, 141);
  for (const float amax : {2.5f, 1e-42f, -400.0f, HUGE_VALF}) {
    expect_cpu_bytes<config_of<kIn, kRule, kTensor, true, true>()>(131, 141, amax);
    expect_cpu_bytes<config_of<kIn, kRule, kTensor, false, true>()>(131, 141, amax);
  }
}

TEST(GivenAmaxTest, OfFactors) {
  expect_cpu_bytes<DType::kFloat32, config::kTorchAoRule>();
  expect_cpu_bytes<DType::kBFloat16, config::kTransformerEngineRule>();
}
TEST(GivenAmaxTest, OfReciprocals) { expect_cpu_bytes<DType::kFloat16, config::kDeepGemmRule>(); }
TEST(GivenAmaxTest, OfDivisions) {
  expect_cpu_bytes<DType::kFloat32, config::kDeepSeekRule>();
  expect_cpu_bytes<DType::kFloat16, config::kTorchAoTensorRule>();
  expect_cpu_bytes<DType::kBFloat16, config::kVllmPerTokenRule>();
}
TEST(GivenAmaxTest, OfDivisionsInTheType) {
  expect_cpu_bytes<DType::kBFloat16, config::kCompressedTensorsRule>();
}

}  // namespace
}  // namespace octofold::cast
