#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

using Row = std::vector<float>;

// The row of a token, of cos or sin; a batch of 1 is that of all.
void read_row(const TensorView& table, std::int64_t batch, std::int64_t token, Row& row) {
  const std::int64_t offset =
      (table.shape[0] == 1 ? 0 : batch * table.strides[0]) + token * table.strides[1];
  load(table.data, table.dtype, offset, 1, std::ssize(row), row.data());
}

// Each product is rounded by itself, as kernels do.
void turn(const Row& x, const Row& cos, const Row& sin, bool inverse, Row& y) {
  const std::size_t half = x.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t j = i + half;
    const float down = inverse ? sin[j] : -sin[i];
    const float up = inverse ? -sin[i] : sin[j];
    const float kept[] = {x[i] * cos[i], x[j] * cos[j]};
    const float added[] = {x[j] * down, x[i] * up};
    y[i] = kept[0] + added[0];
    y[j] = kept[1] + added[1];
  }
}

}  // namespace

void rotary(const RotaryArguments& arguments, const MutableTensorView& y) {
  const TensorView& x = arguments.x;
  const std::int64_t tokens = x.shape[1], heads = x.shape[2], head_size = x.shape[3];
  if (x.element_count() == 0) return;
  parallel_for(x.shape[0] * tokens, heads * head_size, [&] {
    const auto size = static_cast<std::size_t>(head_size);
    return [&, from = Row(size), cos = Row(size), sin = Row(size),
            to = Row(size)](std::int64_t row) mutable {
      const std::int64_t batch = row / tokens, token = row % tokens;
      read_row(arguments.cos, batch, token, cos);
      read_row(arguments.sin, batch, token, sin);
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t offset =
            batch * x.strides[0] + token * x.strides[1] + head * x.strides[2];
        load(x.data, x.dtype, offset, 1, head_size, from.data());
        turn(from, cos, sin, arguments.inverse, to);
        store(to.data(), head_size, y.data, y.dtype, (row * heads + head) * head_size,
              Overflow::kNan);
      }
    };
  });
}

}  // namespace octofold::cpu
