#include "cpu/gated_gemm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cpu/activations.h"
#include "cpu/casts.h"
#include "cpu/gemm.h"

namespace octofold::cpu {
namespace {

// Rows whose gates and ups are in memory at one time: enough for all threads.
constexpr std::int64_t kBandRows = 1024;

template <typename Pointer>
BasicTensorView<Pointer> rows_of(BasicTensorView<Pointer> matrix, std::int64_t first,
                                 std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte,
                                  std::byte>;
  matrix.data = static_cast<Byte*>(matrix.data) + first * matrix.strides[0] * size_of(matrix.dtype);
  matrix.shape[0] = count;
  return matrix;
}

// Of a matrix whose rows have scales of their own.
template <typename Pointer>
BasicScaledTensorView<Pointer> rows_of(const BasicScaledTensorView<Pointer>& matrix,
                                       std::int64_t first, std::int64_t count) {
  return {rows_of(matrix.data, first, count), rows_of(matrix.scale, first, count),
          matrix.granularity};
}

}  // namespace

void gated_gemm(const GatedGemmArguments& arguments, const config::CastFormat& format) {
  const std::int64_t rows = arguments.a.data.shape[0];
  const std::int64_t columns = arguments.b.data.shape[0];  // gates and ups
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(std::min(rows, kBandRows) * columns));
  for (std::int64_t first = 0; first < rows; first += kBandRows) {
    const std::int64_t count = std::min(kBandRows, rows - first);
    const MutableTensorView both = matrix<void>(memory.data(), DType::kBFloat16, count, columns);
    gemm({.a = rows_of(arguments.a, first, count), .b = arguments.b, .out = both});
    const OwnedMatrix values = activation(both, arguments.activation, GateLayout::kHalves);
    quantize(values.view, rows_of(arguments.out, first, count), format, ScaleSource::kComputed);
  }
}

}  // namespace octofold::cpu
