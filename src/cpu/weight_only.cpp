#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cpu/matrix_product.h"

namespace octofold::cpu {
namespace {

void multiply_matrices(const core::WeightOnlyProduct& product) {
  const MatrixProduct matrices{
      .a = Operand(product.x),
      .b = product.transposed ? Operand::columns_of(product.w) : Operand(product.w),
      .out = product.out,
      .bias = product.bias};
  if (size_of(product.x.data.dtype) == 2) return compute<float>(matrices);
  compute<double>(matrices);
}

// Rows as if they lay one below another. Those that come from nowhere are not multiplied.
class Rows {
 public:
  explicit Rows(const core::WeightOnlyProduct& product) : x_(product.x) {
    if (!product.gathered) return;
    GatheredRows rows = *product.gathered;
    const auto* const sources = static_cast<const std::int32_t*>(rows.sources.data);
    sources_ = sources;
    if (rows.factors) {
      const auto* const factors = static_cast<const float*>(rows.factors->data);
      for (std::int64_t row = 0; row < rows.sources.shape[0]; ++row) {
        factors_.push_back(sources[row] < 0 ? 0 : factors[sources[row]]);
      }
      rows.factors.reset();  // they multiply sums, as scales do
    }
    gathered_ = gathered(rows);
    x_.data = gathered_.view;
  }

  bool exists(std::int64_t row) const { return sources_ == nullptr || sources_[row] >= 0; }

  DotOperand slice(std::int64_t begin, std::int64_t end) const {
    DotOperand slice = x_;
    slice.data = rows_of(x_.data, begin, end);
    if (!factors_.empty()) {
      slice.scale = vector(factors_.data() + begin, DType::kFloat32, end - begin);
      slice.granularity = Granularity::kChannel;
    }
    return slice;
  }

 private:
  DotOperand x_;
  OwnedMatrix gathered_;
  const std::int32_t* sources_ = nullptr;
  std::vector<float> factors_;  // of each row, where there are any
};

void multiply_group(const core::WeightOnlyProduct& product, const Rows& rows, std::int64_t group) {
  const auto bounds = rows_of_group(product.groups, group);
  core::WeightOnlyProduct one = product;
  one.w = matrix_of_group(product.groups, product.w, group);
  one.bias = bias_of_group(product.bias, group, product.out.shape[1]);
  for (std::int64_t begin = bounds.begin; begin < bounds.end; ++begin) {
    std::int64_t end = begin;
    while (end < bounds.end && rows.exists(end)) ++end;
    if (begin == end) continue;
    one.x = rows.slice(begin, end);
    one.out = rows_of(product.out, begin, end);
    multiply_matrices(one);
    begin = end;
  }
}

}  // namespace

void multiply(const core::WeightOnlyProduct& product) {
  if (!config::has_groups(product.groups.work)) return multiply_matrices(product);
  const Rows rows(product);
  for (std::int64_t group = 0; group < product.groups.count; ++group) {
    multiply_group(product, rows, group);
  }
}

}  // namespace octofold::cpu
