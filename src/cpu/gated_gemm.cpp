#include "cpu/gated_gemm.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "octofold/scale_layout.h"

#include "cpu/activations.h"
#include "cpu/cast_values.h"
#include "cpu/gemm.h"

namespace octofold::cpu {
namespace {

// Rows whose gates and ups are in memory at one time: enough for all threads.
constexpr std::int64_t kBandRows = 1024;

}  // namespace

void gated_gemm(const GatedGemmArguments& arguments, const config::CastFormat& format) {
  const std::int64_t rows = arguments.a.data.shape[0];
  const std::int64_t columns = arguments.b.data.shape[0];  // gates and ups
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(std::min(rows, kBandRows) * columns));
  for (std::int64_t first = 0; first < rows; first += kBandRows) {
    const std::int64_t count = std::min(kBandRows, rows - first);
    const MutableTensorView both = matrix<void>(memory.data(), DType::kBFloat16, count, columns);
    gemm({.a = row_slice(arguments.a, first, first + count), .b = arguments.b, .out = both});
    const OwnedMatrix values = activation(both, arguments.activation, GateLayout::kHalves);
    cast_matrix(values.view, row_slice(arguments.out, first, first + count), format);
  }
}

}  // namespace octofold::cpu
