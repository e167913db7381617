#include "cpu/gathered.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/convert.h"
#include "cpu/parallel.h"

namespace octofold::cpu {

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

}  // namespace octofold::cpu
