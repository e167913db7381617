#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/scale_layout.h"
#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

// Elements that a thread sums at a time: sums are not rounded, so neither this nor threads matter.
constexpr std::int64_t kChunk = 512 * kScaleBlock;

// A vector, and its scales.
class Vector {
 public:
  explicit Vector(const DotOperand& operand) : data_(operand.data) {
    if (!operand.scale) return;
    scale_ = core::scale_access({operand.data, *operand.scale, operand.granularity});
    has_blocks_ = varies_along_k(operand.granularity);
  }

  std::int64_t size() const { return data_.shape[1]; }
  void load(std::int64_t first, std::int64_t count, float* values) const {
    cpu::load(data_.data, data_.dtype, first, 1, count, values);
  }
  float scale_of_block(std::int64_t block) const { return has_blocks_ ? scale_(0, block) : 1; }
  float scale_of_all() const { return scale_.data != nullptr && !has_blocks_ ? scale_(0, 0) : 1; }

 private:
  TensorView data_;
  core::ScaleAccess<const float> scale_{};
  bool has_blocks_ = false;
};

double sum_of_chunk(const Vector& a, const Vector& b, std::int64_t first) {
  const std::int64_t end = std::min(first + kChunk, a.size());
  std::array<float, kScaleBlock> left, right;
  double sum = 0;
  for (; first < end; first += kScaleBlock) {
    const std::int64_t count = std::min<std::int64_t>(kScaleBlock, end - first);
    a.load(first, count, left.data());
    b.load(first, count, right.data());
    float partial = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) partial += left[i] * right[i];
    const std::int64_t block = first / kScaleBlock;
    sum += partial * (a.scale_of_block(block) * b.scale_of_block(block));
  }
  return sum;
}

}  // namespace

void dot(const DotArguments& arguments) {
  const Vector a(arguments.a), b(arguments.b);
  std::vector<double> sums(static_cast<std::size_t>(core::ceil_divide(a.size(), kChunk)));
  parallel_for(std::ssize(sums), kChunk, [&] {
    return [&](std::int64_t chunk) {
      sums[static_cast<std::size_t>(chunk)] = sum_of_chunk(a, b, chunk * kChunk);
    };
  });
  double sum = 0;
  for (const double of_chunk : sums) sum += of_chunk;
  float& out = *static_cast<float*>(arguments.out.data);
  out = static_cast<float>(a.size() > 0 ? sum * (a.scale_of_all() * b.scale_of_all()) : sum);
}

}  // namespace octofold::cpu
