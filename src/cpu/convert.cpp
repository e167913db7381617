#include "cpu/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

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
      std::array<float, 512> run;
      for (std::int64_t col = 0; col < cols; col += std::ssize(run)) {
        const std::int64_t count = std::min<std::int64_t>(std::ssize(run), cols - col);
        load(x.data, x.dtype, row * x.strides[0] + col, 1, count, run.data());
        store(run.data(), count, out.data, out.dtype, row * out.strides[0] + col, overflow);
      }
    };
  });
}

}  // namespace octofold::cpu
