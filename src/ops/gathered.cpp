#include "octofold/gathered.h"

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/flatten.h"
#include "cpu/gathered.h"
#include "cuda/casts.h"
#include "ops/backend.h"
#include "ops/cast_targets.h"

namespace octofold {
namespace {

TensorView checked_factors(const core::Arguments& check, const TensorView& given,
                           const GatheredRows& rows) {
  const TensorView factors = core::flatten(check, "factors", given);
  check.require_dtype("factors", factors, {DType::kFloat32});
  check.require_same_device("factors", factors, rows.x.device);
  check.require_shape("factors", factors, {rows.x.shape[0], rows.slots});
  check.require_matrix("factors", factors);
  if (factors.shape[0] > 1 && factors.strides[0] != rows.slots) {
    check.fail("factors", "contiguous rows", core::describe(factors));
  }
  return factors;
}

// Matrices, and a vector of sources.
GatheredRows checked(const core::Arguments& check, const GatheredRows& given) {
  GatheredRows rows = given;
  rows.x = core::flatten(check, "x", given.x);
  check.require_input_matrix("x", rows.x);
  check.require_dtype("x", rows.x, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_vector("sources", rows.sources);
  check.require_dtype("sources", rows.sources, {DType::kInt32});
  check.require_same_device("sources", rows.sources, rows.x.device);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (rows.slots < 1 || rows.slots > kMost) {
    check.fail("slots", core::format("1 to {}", kMost), core::format("{}", rows.slots));
  }
  if (given.factors) rows.factors = checked_factors(check, *given.factors, rows);
  return rows;
}

void require_places(const core::Arguments& check, const GatheredRows& rows) {
  const auto* sources = static_cast<const std::int32_t*>(rows.sources.data);
  for (std::int64_t i = 0; i < rows.sources.shape[0]; ++i) {
    if (sources[i] >= -1 && (sources[i] < 0 || sources[i] / rows.slots < rows.x.shape[0])) continue;
    check.fail("sources",
               core::format("places from 0 on, before {} rows of {} slots, or -1", rows.x.shape[0],
                            rows.slots),
               core::format("{} at [{}]", sources[i], i));
  }
}

}  // namespace

void quantize_gathered(const GatheredRows& given, const CastTargets& out,
                       const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize_gathered");
  const GatheredRows rows = checked(check, given);
  if (out.columns.sums || out.columns.amax || out.columns.workspace) {
    check.fail("out.columns", "none of rows that are gathered", "some");
  }
  std::vector<ops::CastInput> inputs{{"x", rows.x}, {"sources", rows.sources}};
  if (rows.factors) inputs.push_back({"factors", *rows.factors});
  const std::array shape{rows.sources.shape[0], rows.x.shape[1]};
  const CastTargets targets = ops::checked_targets(check, out, shape, inputs, options.scales);
  const config::CastFormat format = ops::format_of(check, options, rows.x.dtype, targets);
  if (ops::is_on_cpu(rows.x.device)) {
    require_places(check, rows);
    return cpu::quantize_gathered(rows, targets, format, options.scales);
  }
  cuda::quantize(
      ops::gpu("quantize_gathered", rows.x.device),
      {.source = {.kind = config::SourceKind::kGathered, .factors = rows.factors.has_value()},
       .x = rows.x,
       .sources = rows.sources,
       .slots = rows.slots,
       .factors = rows.factors},
      targets, format, options.scales, stream);
}

}  // namespace octofold
