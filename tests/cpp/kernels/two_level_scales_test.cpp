// The cast of two-level scales, run on the host, beside the CPU backend's: the same bytes.
#include "octofold/cast_targets.h"

#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "cpu/cast.h"
#include "support/test.h"

namespace octofold::cast {
namespace {

// Two of them count as 1.
std::vector<float> factors_of(std::int64_t channels) {
  std::vector<float> factors = random_factors(channels);
  factors.front() = 0;
  factors.back() = std::nanf("");
  return factors;
}

template <DType kIn, config::CastRule kRule, Granularity kRowGranularity, bool kVectors>
void expect_cpu_bytes(std::int64_t rows, std::int64_t cols) {
  constexpr TileCastConfig kConfig{
      .format = {.in = kIn, .granularity = kRowGranularity, .rule = kRule},
      .two_level = true,
      .to_transposed = true,
      .vector_loads = kVectors,
      .vector_stores = kVectors,
      .group_m = 2};
  const std::vector<float> of_rows = factors_of(rows), of_columns = factors_of(cols);
  const auto x = random_values<kIn>(rows, cols);
  Target to_rows(kRowGranularity, rows, cols), to_columns(kBlock128x128, cols, rows);
  Target cpu_rows = to_rows, cpu_columns = to_columns;
  CastParams params{};
  params.x = x.data();
  params.x_stride = cols;
  params.rows = rows;
  params.cols = cols;
  params.row_target = to_rows.target();
  params.transposed_target = to_columns.target();
  params.row_channel_scale = of_rows.data();
  params.transposed_channel_scale = of_columns.data();
  launch<kConfig>(params);

  const auto view = [](Target& target, const std::vector<float>& factors) {
    CastTarget view = target.view();
    if (view.format.granularity == kBlock128x128) {
      view.channel_scale = vector(factors.data(), DType::kFloat32, std::ssize(factors));
    }
    return view;
  };
  cpu::cast_values(matrix<const void>(x.data(), kIn, rows, cols),
                   {.rows = view(cpu_rows, of_rows), .transposed = view(cpu_columns, of_columns)},
                   kConfig.format);
  to_rows.expect_same(cpu_rows);
  to_columns.expect_same(cpu_columns);
}

template <DType kIn>
void expect_cpu_bytes() {
  expect_cpu_bytes<kIn, config::kTorchAoRule, kBlock1x128, true>(136, 264);
  expect_cpu_bytes<kIn, config::kDeepSeekRule, kBlock1x128, false>(129, 77);
  expect_cpu_bytes<kIn, config::kDeepSeekRule, kBlock128x128, true>(136, 264);
  expect_cpu_bytes<kIn, config::kCompressedTensorsRule, kBlock128x128, false>(70, 131);
}

TEST(TwoLevelScalesTest, OfFloat32) { expect_cpu_bytes<DType::kFloat32>(); }
TEST(TwoLevelScalesTest, OfFloat16) { expect_cpu_bytes<DType::kFloat16>(); }
TEST(TwoLevelScalesTest, OfBFloat16) { expect_cpu_bytes<DType::kBFloat16>(); }

}  // namespace
}  // namespace octofold::cast
