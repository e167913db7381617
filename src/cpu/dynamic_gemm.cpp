#include "cpu/dynamic_gemm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "octofold/scale_layout.h"

#include "cpu/cast_values.h"
#include "cpu/gemm.h"

namespace octofold::cpu {
namespace {

// Rows whose codes are in memory at one time: enough for all threads, and whole tiles of gemm(), so
// that each element is summed as there.
constexpr std::int64_t kBandRows = 1024;

template <typename Pointer>
BasicTensorView<Pointer> band(BasicTensorView<Pointer> matrix, std::int64_t first,
                              std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte,
                                  std::byte>;
  matrix.data = static_cast<Byte*>(matrix.data) + first * matrix.strides[0] * size_of(matrix.dtype);
  matrix.shape[0] = count;
  return matrix;
}

}  // namespace

void dynamic_gemm(const DynamicGemmArguments& arguments, const config::CastFormat& format) {
  const std::int64_t rows = arguments.x.shape[0], depth = arguments.x.shape[1];
  const std::int64_t most = std::min(rows, kBandRows);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(most * depth));
  std::vector<float> scales(
      static_cast<std::size_t>(scale_layout(Granularity::kBlock1x128, most, depth).extent()));
  for (std::int64_t first = 0; first < rows; first += kBandRows) {
    const std::int64_t count = std::min(kBandRows, rows - first);
    const CastTarget a{matrix<void>(codes.data(), arguments.format.dtype, count, depth),
                       scale_layout(Granularity::kBlock1x128, count, depth).view(scales.data()),
                       arguments.format};
    cast_matrix(band(arguments.x, first, count), a, format);
    gemm({.a = a,
          .b = arguments.b,
          .out = band(arguments.out, first, count),
          .bias = arguments.bias});
  }
}

}  // namespace octofold::cpu
