#include "cpu/matrices.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/scale_layout.h"
#include "cpu/backend.h"
#include "cpu/number_formats.h"
#include "cpu/parallel.h"
#include "cpu/vector_kernels.h"

namespace octofold::cpu {

void load(const void* data, DType dtype, std::int64_t offset, std::int64_t stride,
          std::int64_t count, float* out) {
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    const auto* elements = static_cast<const typename Format::Storage*>(data) + offset;
    // The common case in loops of its own, for vectors.
    if constexpr (std::is_same_v<Format, E4M3>) {
      if (stride == 1) return vector_kernels().decode_e4m3(elements, count, out);
    } else if constexpr (std::is_same_v<Format, E5M2>) {
      if (stride == 1) return vector_kernels().decode_e5m2(elements, count, out);
    }
    if (stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = Format::decode(elements[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = Format::decode(elements[i * stride]);
    }
  });
}

void store(const float* values, std::int64_t count, void* data, DType dtype, std::int64_t offset,
           Overflow overflow) {
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    auto* elements = static_cast<typename Format::Storage*>(data) + offset;
    if constexpr (std::is_same_v<Format, BFloat16>) {
      return vector_kernels().encode_bfloat16(values, count, elements);
    } else if constexpr (std::is_same_v<Format, Float16>) {
      return vector_kernels().encode_float16(values, count, elements);
    }
    for (std::int64_t i = 0; i < count; ++i) elements[i] = Format::encode(values[i], overflow);
  });
}

void convert_dtype(const TensorView& x, const MutableTensorView& out, Overflow overflow) {
  const std::int64_t cols = x.shape[1];
  if (cols == 0) return;  // memcpy takes no null pointer, even for nothing
  parallel_for(x.shape[0], cols, [&] {
    return [&](std::int64_t row) {
      if (x.dtype == out.dtype) {  // the bits as they are, NaN payloads included
        const std::int64_t size = size_of(x.dtype);
        std::memcpy(static_cast<char*>(out.data) + row * out.strides[0] * size,
                    static_cast<const char*>(x.data) + row * x.strides[0] * size,
                    static_cast<std::size_t>(cols * size));
        return;
      }
      std::array<float, kRun> run;
      for (std::int64_t col = 0; col < cols; col += std::ssize(run)) {
        const std::int64_t count = std::min<std::int64_t>(std::ssize(run), cols - col);
        load(x.data, x.dtype, row * x.strides[0] + col, 1, count, run.data());
        store(run.data(), count, out.data, out.dtype, row * out.strides[0] + col, overflow);
      }
    };
  });
}

OwnedMatrix gathered(const GatheredRows& rows) {
  const TensorView& x = rows.x;
  const std::int64_t count = rows.sources.shape[0], cols = x.shape[1], size = size_of(x.dtype);
  OwnedMatrix result = OwnedMatrix::make(count, cols, x.dtype);
  std::byte* data = result.memory.data();
  parallel_for(count, cols, [&] {
    return [&,
            values = std::vector<float>(static_cast<std::size_t>(cols))](std::int64_t row) mutable {
      const std::int32_t source = static_cast<const std::int32_t*>(rows.sources.data)[row];
      if (source < 0 || cols == 0) return;
      const std::int64_t from = source / rows.slots * x.strides[0];
      if (!rows.factors) {
        std::memcpy(data + row * cols * size, static_cast<const std::byte*>(x.data) + from * size,
                    static_cast<std::size_t>(cols * size));
        return;
      }
      const float factor = static_cast<const float*>(rows.factors->data)[source];
      load(x.data, x.dtype, from, 1, cols, values.data());
      for (float& value : values) value *= factor;
      store(values.data(), cols, data, x.dtype, row * cols, Overflow::kNan);
    };
  });
  return result;
}

void dequantize(const ScaledTensorView& x, const MutableTensorView& out) {
  const std::int64_t rows = x.data.shape[0], cols = x.data.shape[1];
  const core::UnitSize unit = core::unit_size(x.granularity, rows, cols);
  const core::ScaleAccess<const float> scale = core::scale_access(x);
  parallel_for(rows, cols, [&] {
    return [&](std::int64_t row) {
      for (std::int64_t col = 0; col < cols; col += unit.cols) {
        const float factor = scale(row / unit.rows, col / unit.cols);
        const Rectangle area{row, 1, col, std::min(unit.cols, cols - col)};
        for_each_run(x.data, area, [&](auto, std::int64_t first, float* values, auto count) {
          for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
          store(values, count, out.data, out.dtype, row * out.strides[0] + first,
                Overflow::kSaturate);
        });
      }
    };
  });
}

// Squares of 64 by way of an array: rows a power of two apart share few lines of the cache, of
// which each is used whole at once. An item is 64 columns of one matrix.
void transpose(const TensorView& x, const MutableTensorView& out, std::int64_t matrices) {
  if (x.element_count() == 0) return;
  constexpr std::int64_t kSquare = 64;
  const std::int64_t rows = x.shape[0] / matrices, cols = x.shape[1];
  const std::int64_t strips = (cols + kSquare - 1) / kSquare;
  const auto* from = static_cast<const unsigned char*>(x.data);
  auto* to = static_cast<unsigned char*>(out.data);
  parallel_for(matrices * strips, rows * kSquare, [&] {
    return [&](std::int64_t item) {
      const std::int64_t matrix = item / strips, first_col = item % strips * kSquare;
      const std::int64_t width = std::min(kSquare, cols - first_col);
      unsigned char square[kSquare][kSquare];
      for (std::int64_t first_row = 0; first_row < rows; first_row += kSquare) {
        const std::int64_t height = std::min(kSquare, rows - first_row);
        for (std::int64_t row = 0; row < height; ++row) {
          const std::int64_t of_x = matrix * rows + first_row + row;
          std::copy_n(from + of_x * x.strides[0] + first_col, width, square[row]);
        }
        for (std::int64_t col = 0; col < width; ++col) {
          const std::int64_t of_out = matrix * cols + first_col + col;
          unsigned char* line = to + of_out * out.strides[0] + first_row;
          for (std::int64_t row = 0; row < height; ++row) line[row] = square[row][col];
        }
      }
    };
  });
}

}  // namespace octofold::cpu
