#include "model/scale_names.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <span>
#include <string>

#include "octofold/scale_layout.h"

#include "model/contents.h"

namespace octofold::model {
namespace {

using Shape = std::span<const std::int64_t>;

/// True if `count` blocks of some power of two make up `size`.
bool is_in_blocks(std::int64_t size, std::int64_t count) {
  while (size > count && size > 1) size -= size / 2;
  return size == count;
}

/// True if there are codes for each of these numbers, in order.
bool may_scale(Shape codes, Shape scale) {
  std::size_t next = 0;
  for (const std::int64_t count : scale) {
    if (count == 1) continue;
    while (next < codes.size() && !is_in_blocks(codes[next], count)) ++next;
    if (next++ == codes.size()) return false;
  }
  return true;
}

bool has_shape_of_blocks(Shape codes, Shape scale) {
  if (scale.size() != codes.size()) return false;
  const MatrixSizes sizes(codes);
  const auto blocks = scale_shape(Granularity::kBlock128x128, sizes.rows, sizes.cols);
  return std::equal(codes.begin(), codes.end() - 2, scale.begin()) &&
         std::equal(blocks.begin(), blocks.end(), scale.end() - 2) && blocks[0] * blocks[1] > 1;
}

/// Not of those that an input is divided by, nor of tables that shift and scale (of modulations).
bool speaks_of_scales(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const auto has = [&](std::string_view word) { return lower.find(word) != std::string::npos; };
  return (has("scal") || has("amax") || has("absmax")) && !has("input") && !has("shift");
}

/// The name, beside the codes, of a tensor whose name begins as the codes' module. Empty: it is not
/// beside the codes.
std::string_view name_beside(std::string_view name, std::string_view module,
                             std::string_view parameter) {
  name.remove_prefix(module.size());
  if (!module.empty()) {
    if (name.empty() || (name.front() != '.' && name.front() != '_')) return {};
    name.remove_prefix(1);
  }
  if (name.size() > parameter.size() && name.starts_with(parameter) &&
      name[parameter.size()] == '.') {
    name.remove_prefix(parameter.size() + 1);
  }
  return name.find('.') == std::string_view::npos ? name : std::string_view();
}

}  // namespace

const CheckpointTensor* scales_beside(const CheckpointTensor& codes, const TensorsByName& tensors,
                                      const std::function<bool(const CheckpointTensor&)>& known) {
  if (codes.shape.size() < 2) return nullptr;
  const std::string_view whole = codes.name;
  const std::size_t dot = whole.rfind('.');
  const std::string_view module = dot == std::string_view::npos ? "" : whole.substr(0, dot);
  const std::string_view parameter = whole.substr(dot + 1);
  for (auto at = tensors.lower_bound(module); at != tensors.end() && at->first.starts_with(module);
       ++at) {
    const std::string_view name = name_beside(at->first, module, parameter);
    if (name.empty() || is_fp8(*at->second) || known(*at->second)) continue;
    const Shape shape = at->second->shape;
    if ((speaks_of_scales(name) && may_scale(codes.shape, shape)) ||
        has_shape_of_blocks(codes.shape, shape)) {
      return at->second;
    }
  }
  return nullptr;
}

}  // namespace octofold::model
