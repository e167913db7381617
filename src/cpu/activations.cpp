#include "cpu/activations.h"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "cpu/matrices.h"
#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

struct Curve {
  double value, slope;
};

// The constants of kSwiGluOss.
constexpr double kOssSlope = 1.702, kOssLimit = 7;

// The definitions of vocabulary.h.
Curve curve(Activation activation, double x) {
  switch (activation) {
    case Activation::kSwiGlu:
    case Activation::kSilu: {
      const double sigmoid = 1 / (1 + std::exp(-x));
      return {x * sigmoid, sigmoid + x * sigmoid * (1 - sigmoid)};
    }
    case Activation::kGeGluErf:
    case Activation::kGelu: {
      const double part = std::erfc(-x / std::numbers::sqrt2) / 2;
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
      return {x * part, part + x * density};
    }
    case Activation::kGeGluTanh:
    case Activation::kGeluTanh: {
      const double scale = std::sqrt(2 / std::numbers::pi);
      const double part = (1 + std::tanh(scale * (x + 0.044715 * x * x * x))) / 2;
      const double inner_slope = scale * (1 + 3 * 0.044715 * x * x);
      return {x * part, part + 2 * x * part * (1 - part) * inner_slope};
    }
    case Activation::kSwiGluOss: {
      const bool is_clamped = x > kOssLimit;
      if (is_clamped) x = kOssLimit;
      const double sigmoid = 1 / (1 + std::exp(-kOssSlope * x));
      const double slope = sigmoid + kOssSlope * x * sigmoid * (1 - sigmoid);
      return {x * sigmoid, is_clamped ? 0 : slope};
    }
    case Activation::kReluSquared: {
      const double positive = x < 0 ? 0 : x;
      return {positive * positive, 2 * positive};
    }
  }
  return {};
}

// The number by which the gate's curve is multiplied, and its derivative by up.
Curve factor(Activation activation, double up) {
  if (activation != Activation::kSwiGluOss) return {up, 1};
  if (std::abs(up) > kOssLimit) return {std::copysign(kOssLimit, up) + 1, 0};
  return {up + 1, 1};
}

// A row of x, in FP32: of a gated activation one gate and one up for each of its columns.
class ActivationRow {
 public:
  ActivationRow(const TensorView& x, Activation activation, GateLayout layout)
      : x_(x),
        gated_(is_gated(activation)),
        step_(gated_ && layout == GateLayout::kInterleaved ? 2 : 1),
        to_up_(!gated_      ? 0
               : step_ == 2 ? 1
                            : x.shape[1] / 2),
        values_(static_cast<std::size_t>(x.shape[1])) {}

  void read(std::int64_t row) {
    load(x_.data, x_.dtype, row * x_.strides[0], x_.strides[1], x_.shape[1], values_.data());
  }
  bool gated() const { return gated_; }
  std::int64_t columns() const { return gated_ ? x_.shape[1] / 2 : x_.shape[1]; }
  /// The indices of a column's gate and up.
  std::size_t gate_at(std::int64_t column) const {
    return static_cast<std::size_t>(column * step_);
  }
  std::size_t up_at(std::int64_t column) const {
    return gate_at(column) + static_cast<std::size_t>(to_up_);
  }
  double gate(std::int64_t column) const { return values_[gate_at(column)]; }
  double up(std::int64_t column) const { return values_[up_at(column)]; }

 private:
  const TensorView& x_;
  bool gated_;
  std::int64_t step_, to_up_;
  std::vector<float> values_;
};

// activation(x) of the row that was read.
double value_of(Activation activation, const ActivationRow& row, std::int64_t column) {
  const double value = curve(activation, row.gate(column)).value;
  return row.gated() ? value * factor(activation, row.up(column)).value : value;
}

// Rows as `work(row, values)` makes them; each thread has a worker.
template <typename MakeWorker>
OwnedMatrix matrix_of_rows(std::int64_t rows, std::int64_t cols, DType dtype,
                           MakeWorker&& make_worker) {
  OwnedMatrix result = OwnedMatrix::make(rows, cols, dtype);
  void* data = result.memory.data();
  parallel_for(rows, 8 * cols, [&] {
    return [&, worker = make_worker(),
            values = std::vector<float>(static_cast<std::size_t>(cols))](std::int64_t row) mutable {
      worker(row, values);
      store(values.data(), cols, data, dtype, row * cols, Overflow::kNan);
    };
  });
  return result;
}

}  // namespace

OwnedMatrix activation(const TensorView& x, Activation activation, GateLayout layout) {
  const std::int64_t cols = ActivationRow(x, activation, layout).columns();
  return matrix_of_rows(x.shape[0], cols, x.dtype, [&] {
    return [&, input = ActivationRow(x, activation, layout)](std::int64_t row,
                                                             std::vector<float>& values) mutable {
      input.read(row);
      for (std::int64_t i = 0; i < cols; ++i) {
        values[static_cast<std::size_t>(i)] = static_cast<float>(value_of(activation, input, i));
      }
    };
  });
}

OwnedMatrix activation_gradient(const TensorView& gradient, const TensorView& x,
                                Activation activation, GateLayout layout) {
  return matrix_of_rows(x.shape[0], x.shape[1], x.dtype, [&] {
    return [&, input = ActivationRow(x, activation, layout),
            by_value = ActivationRow(gradient, Activation::kSilu, layout)](
               std::int64_t row, std::vector<float>& values) mutable {
      input.read(row);
      by_value.read(row);
      for (std::int64_t i = 0; i < input.columns(); ++i) {
        const Curve at = curve(activation, input.gate(i));
        if (!input.gated()) {
          values[input.gate_at(i)] = static_cast<float>(by_value.gate(i) * at.slope);
          continue;
        }
        const Curve of_up = factor(activation, input.up(i));
        values[input.gate_at(i)] = static_cast<float>(by_value.gate(i) * at.slope * of_up.value);
        values[input.up_at(i)] = static_cast<float>(by_value.gate(i) * at.value * of_up.slope);
      }
    };
  });
}

double activation_dot(const TensorView& gradient, const TensorView& x, std::int64_t row,
                      Activation activation) {
  ActivationRow input(x, activation, GateLayout::kHalves);
  ActivationRow by_value(gradient, Activation::kSilu, GateLayout::kHalves);
  input.read(row);
  by_value.read(row);
  double sum = 0;
  for (std::int64_t i = 0; i < input.columns(); ++i) {
    sum += by_value.gate(i) * value_of(activation, input, i);
  }
  return sum;
}

}  // namespace octofold::cpu
