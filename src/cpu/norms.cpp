#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

float& number(const MutableTensorView& vector, std::int64_t index) {
  return static_cast<float*>(vector.data)[index];
}

double mean_of(double sum, std::int64_t count) {
  return sum / static_cast<double>(std::max<std::int64_t>(count, 1));
}

std::int64_t batches_of(const NormOperands& operands) {
  if (operands.ada_scale) return operands.ada_scale->shape[0];
  return operands.ada_shift ? operands.ada_shift->shape[0] : 1;
}

// How many rows have the same ada_scale and ada_shift.
std::int64_t rows_per_batch(const NormOperands& operands, std::int64_t rows) {
  return std::max<std::int64_t>(rows / std::max<std::int64_t>(batches_of(operands), 1), 1);
}

// The operands of a row in FP32; what is left out changes nothing.
class Operands {
 public:
  Operands(const NormOperands& operands, std::int64_t rows, std::int64_t cols)
      : operands_(operands),
        rows_per_batch_(rows_per_batch(operands, rows)),
        weight(static_cast<std::size_t>(cols), 1.0f),
        bias(static_cast<std::size_t>(cols), 0.0f),
        ada_scale(bias),
        ada_shift(bias) {
    if (operands.weight) read_row(*operands.weight, 0, weight);
    if (operands.bias) read_row(*operands.bias, 0, bias);
  }

  void go_to(std::int64_t row) {
    const std::int64_t batch = row / rows_per_batch_;
    if (operands_.ada_scale) read_row(*operands_.ada_scale, batch, ada_scale);
    if (operands_.ada_shift) read_row(*operands_.ada_shift, batch, ada_shift);
  }

  // Each operation that there is, rounded by itself: one that is left out may not turn -0 into 0.
  float apply(float n, std::size_t i) const {
    if (operands_.weight) n *= weight[i];
    if (operands_.bias) n += bias[i];
    if (operands_.ada_scale) n *= 1.0f + ada_scale[i];
    if (operands_.ada_shift) n += ada_shift[i];
    return n;
  }

 private:
  const NormOperands& operands_;
  std::int64_t rows_per_batch_;

 public:
  Row weight, bias, ada_scale, ada_shift;
};

struct Statistics {
  float mean = 0, rstd = 0;
};

Statistics statistics_of(const Row& x, NormKind kind, float epsilon) {
  double mean = 0, squares = 0;
  if (kind == NormKind::kLayer) {
    for (const float value : x) mean += static_cast<double>(value);
    mean = mean_of(mean, std::ssize(x));
  }
  for (const float value : x) {
    const double difference = static_cast<double>(value) - mean;
    squares += difference * difference;
  }
  const double variance = mean_of(squares, std::ssize(x));
  return {static_cast<float>(mean),
          static_cast<float>(1 / std::sqrt(variance + static_cast<double>(epsilon)))};
}

// Reads what is normed: x, or its rounded sum with the residual, which is written and read back.
void read_normed(const Normed& source, std::int64_t row, Row& x, Row& residual) {
  read_row(source.x, row, x);
  if (!source.residual) return;
  read_row(*source.residual, row, residual);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += residual[i];
  write_row(x, *source.sum, row);
  read_row(*source.sum, row, x);
}

// The gradient by x of a row, from the terms that do not depend on it: all in double.
struct RowGradient {
  std::vector<double> n;  // normalized x
  std::vector<double> g;  // the gradient by n

  explicit RowGradient(std::size_t cols) : n(cols), g(cols) {}

  void find(const Row& dy, const Row& x, const Operands& operands, double mean, double rstd) {
    for (std::size_t i = 0; i < n.size(); ++i) {
      n[i] = (static_cast<double>(x[i]) - mean) * rstd;
      g[i] = static_cast<double>(dy[i]) * static_cast<double>(operands.weight[i]) *
             (1 + static_cast<double>(operands.ada_scale[i]));
    }
  }

  void to_dx(NormKind kind, double rstd, const Row& addend, Row& dx) const {
    double product = 0, sum = 0;
    for (std::size_t i = 0; i < n.size(); ++i) {
      product += g[i] * n[i];
      sum += g[i];
    }
    product = mean_of(product, std::ssize(n));
    sum = kind == NormKind::kLayer ? mean_of(sum, std::ssize(n)) : 0;
    for (std::size_t i = 0; i < n.size(); ++i) {
      dx[i] =
          static_cast<float>(rstd * (g[i] - n[i] * product - sum) + static_cast<double>(addend[i]));
    }
  }
};

double number(const std::optional<TensorView>& vector, std::int64_t index) {
  return vector ? static_cast<double>(static_cast<const float*>(vector->data)[index]) : 0;
}

// Columns [col, col + count) of all gradients by operands, from all rows in their order.
class ColumnGradients {
 public:
  ColumnGradients(const NormGradientArguments& arguments, const NormGradients& gradients,
                  std::int64_t col, std::int64_t count)
      : arguments_(arguments),
        gradients_(gradients),
        col_(col),
        dy_(static_cast<std::size_t>(count)),
        x_(dy_),
        weight_(dy_.size(), 1.0f),
        bias_(dy_.size(), 0.0f),
        scale_(bias_),
        products_(dy_.size()),
        offsets_(dy_.size()),
        of_weight_(dy_.size()),
        of_bias_(dy_.size()) {}

  void find() {
    const NormOperands& operands = arguments_.operands;
    const std::int64_t rows = arguments_.gradient.shape[0], height = rows_per_batch(operands, rows);
    if (operands.weight) read_columns(*operands.weight, 0, weight_);
    if (operands.bias) read_columns(*operands.bias, 0, bias_);
    for (std::int64_t batch = 0; batch < batches_of(operands); ++batch) {
      if (operands.ada_scale) read_columns(*operands.ada_scale, batch, scale_);
      std::ranges::fill(products_, 0);
      std::ranges::fill(offsets_, 0);
      const std::int64_t end = std::min(rows, (batch + 1) * height);
      for (std::int64_t row = batch * height; row < end; ++row) add(row);
      finish(batch);
    }
    store_floats(gradients_.dweight, 0, of_weight_);
    store_floats(gradients_.dbias, 0, of_bias_);
  }

 private:
  using Sums = std::vector<double>;

  void read_columns(const TensorView& tensor, std::int64_t row, Row& values) const {
    const std::int64_t offset = tensor.rank == 2 ? row * tensor.strides[0] : 0;
    load(tensor.data, tensor.dtype, offset + col_, 1, std::ssize(values), values.data());
  }

  void store_floats(const std::optional<MutableTensorView>& out, std::int64_t row,
                    const Sums& sums) const {
    if (!out) return;
    float* values =
        static_cast<float*>(out->data) + (out->rank == 2 ? row * out->strides[0] : 0) + col_;
    for (std::size_t i = 0; i < sums.size(); ++i) values[i] = static_cast<float>(sums[i]);
  }

  void add(std::int64_t row) {
    read_columns(arguments_.gradient, row, dy_);
    read_columns(arguments_.x, row, x_);
    const double mean = number(arguments_.mean, row), rstd = number(arguments_.rstd, row);
    for (std::size_t i = 0; i < dy_.size(); ++i) {
      const double dy = static_cast<double>(dy_[i]);
      products_[i] += dy * ((static_cast<double>(x_[i]) - mean) * rstd);
      offsets_[i] += dy;
    }
  }

  void finish(std::int64_t batch) {
    Sums of_scale(products_.size());
    for (std::size_t i = 0; i < products_.size(); ++i) {
      const double factor = 1 + static_cast<double>(scale_[i]);
      of_weight_[i] += factor * products_[i];
      of_bias_[i] += factor * offsets_[i];
      of_scale[i] = products_[i] * static_cast<double>(weight_[i]) +
                    offsets_[i] * static_cast<double>(bias_[i]);
    }
    store_floats(gradients_.d_ada_scale, batch, of_scale);
    store_floats(gradients_.d_ada_shift, batch, offsets_);
  }

  const NormGradientArguments& arguments_;
  const NormGradients& gradients_;
  std::int64_t col_;
  Row dy_, x_, weight_, bias_, scale_;
  Sums products_, offsets_, of_weight_, of_bias_;
};

}  // namespace

void normalize(const Normed& source, const MutableTensorView& y) {
  const std::int64_t rows = source.x.shape[0], cols = source.x.shape[1];
  parallel_for(rows, cols, [&] {
    return [&, operands = Operands(source.operands, rows, cols),
            x = Row(static_cast<std::size_t>(cols)),
            residual = Row(static_cast<std::size_t>(cols))](std::int64_t row) mutable {
      read_normed(source, row, x, residual);
      const Statistics statistics = statistics_of(x, source.kind, source.epsilon);
      number(source.rstd, row) = statistics.rstd;
      if (source.mean) number(*source.mean, row) = statistics.mean;
      operands.go_to(row);
      for (std::size_t i = 0; i < x.size(); ++i) {
        float value = x[i];
        if (source.kind == NormKind::kLayer) value -= statistics.mean;
        x[i] = operands.apply(value * statistics.rstd, i);
      }
      write_row(x, y, row);
    };
  });
}

void norm_gradient(const NormGradientArguments& arguments, const NormGradients& gradients) {
  const std::int64_t rows = arguments.gradient.shape[0], cols = arguments.gradient.shape[1];
  const auto size = static_cast<std::size_t>(cols);
  parallel_for(rows, cols, [&] {
    return [&, operands = Operands(arguments.operands, rows, cols), dy = Row(size), x = Row(size),
            addend = Row(size), gradient = RowGradient(size)](std::int64_t row) mutable {
      read_row(arguments.gradient, row, dy);
      read_row(arguments.x, row, x);
      if (arguments.residual_gradient) read_row(*arguments.residual_gradient, row, addend);
      operands.go_to(row);
      const double rstd = number(std::optional(arguments.rstd), row);
      gradient.find(dy, x, operands, number(arguments.mean, row), rstd);
      gradient.to_dx(arguments.kind, rstd, addend, x);
      write_row(x, gradients.dx, row);
    };
  });
  if (!gradients.workspace) return;
  constexpr std::int64_t kColumns = 64;
  parallel_for((cols + kColumns - 1) / kColumns, rows * kColumns, [&] {
    return [&](std::int64_t index) {
      const std::int64_t col = index * kColumns;
      ColumnGradients(arguments, gradients, col, std::min(kColumns, cols - col)).find();
    };
  });
}

}  // namespace octofold::cpu
