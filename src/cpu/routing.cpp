#include "kernels/routing/config/routing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "cpu/activations.h"
#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

Row row_of(std::int64_t cols) { return Row(static_cast<std::size_t>(cols)); }

template <typename T>
const T* row_of(const TensorView& matrix, std::int64_t row) {
  return static_cast<const T*>(matrix.data) + row * matrix.strides[0];
}
template <typename T>
T* row_of(const MutableTensorView& matrix, std::int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.strides[0];
}

// All entries of an index matrix, from -1 on and below `end`.
void require_range(std::string_view operation, std::string_view argument, const TensorView& index,
                   std::int64_t end) {
  for (std::int64_t row = 0; row < index.shape[0]; ++row) {
    const std::int32_t* entries = row_of<std::int32_t>(index, row);
    for (std::int64_t j = 0; j < index.shape[1]; ++j) {
      if (entries[j] >= -1 && entries[j] < end) continue;
      core::fail_argument(operation, argument, core::format("numbers from -1 to {}", end - 1),
                          core::format("{} at [{}, {}]", entries[j], row, j));
    }
  }
}

// The scores of a token's experts.
void score(const Row& logits, Scoring scoring, std::vector<double>& scores) {
  if (scoring == Scoring::kSigmoid) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      scores[i] = 1 / (1 + std::exp(-static_cast<double>(logits[i])));
    }
    return;
  }
  unsigned largest = 0;  // NaN among the logits makes all scores NaN
  for (const float logit : logits) {
    largest = std::max(largest, config::order_of_bits(std::bit_cast<unsigned>(logit)));
  }
  const auto shift = static_cast<double>(std::bit_cast<float>(config::bits_of_order(largest)));
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    scores[i] = std::exp(static_cast<double>(logits[i]) - shift);
    sum += scores[i];
  }
  for (double& value : scores) value /= sum;
}

// The number added to the sum of chosen scores where weights are normalized.
double little(Scoring scoring) { return scoring == Scoring::kSigmoid ? 1e-20 : 0; }

// Places of the `count` best choices, best first, of equal ones the first one first.
std::vector<std::int32_t> best_of(const Row& choices, const std::vector<std::int32_t>& among,
                                  std::int64_t count) {
  std::vector<std::int32_t> best = among;
  const auto order = [&](std::int32_t i) {
    return config::order_of_bits(std::bit_cast<unsigned>(choices[static_cast<std::size_t>(i)]));
  };
  std::partial_sort(best.begin(), best.begin() + count, best.end(),
                    [&](std::int32_t left, std::int32_t right) {
                      const unsigned of_left = order(left), of_right = order(right);
                      return of_left != of_right ? of_left > of_right : left < right;
                    });
  best.resize(static_cast<std::size_t>(count));
  return best;
}

std::vector<std::int32_t> numbers(std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), static_cast<std::int32_t>(begin));
  return all;
}

// The experts of the best groups.
std::vector<std::int32_t> experts_of_best_groups(const Row& choices, const TopKOptions& options) {
  const std::int64_t size = std::ssize(choices) / options.groups;
  if (options.groups == 1) return numbers(0, size);
  Row scores = row_of(options.groups);
  for (std::int64_t group = 0; group < options.groups; ++group) {
    const auto best = best_of(choices, numbers(group * size, (group + 1) * size), 2);
    scores[static_cast<std::size_t>(group)] =
        choices[static_cast<std::size_t>(best[0])] + choices[static_cast<std::size_t>(best[1])];
  }
  std::vector<std::int32_t> experts;
  for (const auto group : best_of(scores, numbers(0, options.groups), options.top_groups)) {
    const auto of_group = numbers(group * size, (group + 1) * size);
    experts.insert(experts.end(), of_group.begin(), of_group.end());
  }
  return experts;
}

}  // namespace

void top_k(const TopKArguments& arguments, const TopKOptions& options) {
  const TensorView& logits = arguments.logits;
  const std::int64_t experts = logits.shape[1], slots = arguments.ids.shape[1];
  Row bias = row_of(arguments.bias ? experts : 0);
  if (arguments.bias) load(arguments.bias->data, DType::kFloat32, 0, 1, experts, bias.data());
  parallel_for(logits.shape[0], 16 * experts, [&] {
    return [&, choices = row_of(experts),
            scores = std::vector<double>(static_cast<std::size_t>(experts))](
               std::int64_t token) mutable {
      read_row(logits, token, choices);
      score(choices, options.scoring, scores);
      if (options.scoring == Scoring::kSigmoid) {
        for (std::size_t i = 0; i < choices.size(); ++i) {
          choices[i] = static_cast<float>(scores[i]) + (bias.empty() ? 0 : bias[i]);
        }
      }
      const auto best = best_of(choices, experts_of_best_groups(choices, options), slots);
      float sum = options.normalize ? 0.0f : 1.0f;
      if (options.normalize) {
        for (const auto id : best) sum += static_cast<float>(scores[static_cast<std::size_t>(id)]);
        sum += static_cast<float>(little(options.scoring));
      }
      std::ranges::copy(best, row_of<std::int32_t>(arguments.ids, token));
      float* weights = row_of<float>(arguments.weights, token);
      for (std::size_t j = 0; j < best.size(); ++j) {
        const auto value = static_cast<float>(scores[static_cast<std::size_t>(best[j])]);
        weights[j] = value / sum * options.scaling_factor;
      }
    };
  });
}

void top_k_gradient(const TopKGradientArguments& arguments, const TopKOptions& options) {
  const TensorView& logits = arguments.logits;
  const std::int64_t experts = logits.shape[1], slots = arguments.ids.shape[1];
  require_range("top_k_gradient", "ids", arguments.ids, experts);
  parallel_for(logits.shape[0], 16 * experts, [&] {
    return [&, values = row_of(experts),
            scores = std::vector<double>(static_cast<std::size_t>(experts)),
            slopes = std::vector<double>(static_cast<std::size_t>(experts))](
               std::int64_t token) mutable {
      read_row(logits, token, values);
      score(values, options.scoring, scores);
      const std::int32_t* ids = row_of<std::int32_t>(arguments.ids, token);
      const float* gradient = row_of<float>(arguments.gradient, token);
      double sum = little(options.scoring), products = 0;
      for (std::int64_t j = 0; j < slots; ++j) {
        if (ids[j] < 0) continue;
        const double chosen = scores[static_cast<std::size_t>(ids[j])];
        sum += chosen;
        products += static_cast<double>(gradient[j]) * chosen;
      }
      std::ranges::fill(slopes, 0.0);  // by the scores
      for (std::int64_t j = 0; j < slots; ++j) {
        if (ids[j] < 0) continue;
        auto slope = static_cast<double>(gradient[j]);
        if (options.normalize) slope = (slope - products / sum) / sum;
        slopes[static_cast<std::size_t>(ids[j])] +=
            slope * static_cast<double>(options.scaling_factor);
      }
      double mean = 0;
      if (options.scoring == Scoring::kSoftmax) {
        mean = std::inner_product(slopes.begin(), slopes.end(), scores.begin(), 0.0);
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double own =
            options.scoring == Scoring::kSoftmax ? slopes[i] - mean : slopes[i] * (1 - scores[i]);
        values[i] = static_cast<float>(scores[i] * own);
      }
      write_row(values, arguments.logits_gradient, token);
    };
  });
}

void sort_by_expert(const TensorView& ids, std::int64_t experts, const SortedSlots& out) {
  require_range("sort_by_expert", "ids", ids, experts);
  auto* offsets = static_cast<std::int32_t*>(out.offsets.data);
  auto* sources = static_cast<std::int32_t*>(out.sources.data);
  auto* positions = static_cast<std::int32_t*>(out.positions.data);
  const std::int64_t slots = ids.element_count(), each = ids.shape[1];
  const auto id_at = [&](std::int64_t slot) {
    return row_of<std::int32_t>(ids, slot / each)[slot % each];
  };
  std::fill_n(offsets, experts + 1, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (id_at(slot) >= 0) ++offsets[id_at(slot) + 1];
  }
  std::partial_sum(offsets, offsets + experts + 1, offsets);
  std::vector<std::int32_t> next(offsets, offsets + experts);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int32_t id = id_at(slot);
    positions[slot] = id < 0 ? -1 : next[static_cast<std::size_t>(id)]++;
    if (id >= 0) sources[positions[slot]] = static_cast<std::int32_t>(slot);
  }
  std::fill(sources + offsets[experts], sources + slots, -1);
}

void combine(const CombineArguments& arguments) {
  const TensorView &y = arguments.y, &positions = arguments.positions;
  const MutableTensorView& out = arguments.out;
  const std::int64_t cols = out.shape[1], slots = positions.shape[1];
  require_range("combine", "positions", positions, y.shape[0]);
  parallel_for(out.shape[0], cols * (slots + 1), [&] {
    return [&, sums = row_of(cols), row = row_of(cols)](std::int64_t token) mutable {
      std::ranges::fill(sums, 0.0f);
      if (arguments.c) read_row(*arguments.c, token, sums);
      const std::int32_t* rows = row_of<std::int32_t>(positions, token);
      for (std::int64_t j = 0; j < slots; ++j) {
        if (rows[j] < 0) continue;
        read_row(y, rows[j], row);
        const float weight = arguments.weights ? row_of<float>(*arguments.weights, token)[j] : 1.0f;
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * row[i];
      }
      write_row(sums, out, token);
    };
  });
}

void combine_gradient(const CombineGradientArguments& arguments) {
  const TensorView &y = arguments.y, &positions = arguments.positions;
  const std::int64_t cols = arguments.gradient.shape[1], slots = positions.shape[1];
  require_range("combine_gradient", "positions", positions, y.shape[0]);
  parallel_for(positions.shape[0], cols * (slots + 1), [&] {
    return [&, gradient = row_of(cols), row = row_of(cols)](std::int64_t token) mutable {
      read_row(arguments.gradient, token, gradient);
      const std::int32_t* rows = row_of<std::int32_t>(positions, token);
      float* sums = row_of<float>(arguments.weights_gradient, token);
      for (std::int64_t j = 0; j < slots; ++j) {
        double sum = 0;
        if (rows[j] >= 0) {
          read_row(y, rows[j], row);
          for (std::size_t i = 0; i < row.size(); ++i) {
            sum += static_cast<double>(gradient[i]) * static_cast<double>(row[i]);
          }
        }
        sums[j] = static_cast<float>(sum);
      }
    };
  });
}

void activation_dots(const ActivationDotsArguments& arguments) {
  const TensorView& positions = arguments.positions;
  const std::int64_t slots = positions.shape[1];
  require_range("activation_dots", "positions", positions, arguments.x.shape[0]);
  parallel_for(positions.shape[0], 8 * arguments.x.shape[1] * slots, [&] {
    return [&](std::int64_t token) {
      const std::int32_t* rows = row_of<std::int32_t>(positions, token);
      float* dots = row_of<float>(arguments.dots, token);
      for (std::int64_t j = 0; j < slots; ++j) {
        const float dot = rows[j] < 0
                              ? 0.0f
                              : static_cast<float>(activation_dot(arguments.gradient, arguments.x,
                                                                  rows[j], arguments.activation));
        dots[j] = arguments.c ? row_of<float>(*arguments.c, token)[j] + dot : dot;
      }
    };
  });
}

void expert_sums(const ExpertSumsArguments& arguments) {
  const TensorView& weights = arguments.weights;
  const std::int64_t slots = weights.shape[1], count = weights.element_count();
  const std::int64_t experts = arguments.sums.shape[0], cols = arguments.sums.shape[1];
  const TensorView sources = matrix(arguments.sources.data, DType::kInt32, 1, count);
  require_range("expert_sums", "sources", sources, count);
  const auto* offsets = static_cast<const std::int32_t*>(arguments.offsets.data);
  const auto* slot_of_row = row_of<std::int32_t>(sources, 0);
  OwnedMatrix by_x;
  if (arguments.x) {  // rows behind the last may be any numbers
    const std::int64_t rows = offsets[experts];
    by_x = activation_gradient(rows_of(arguments.gradient, 0, rows), rows_of(*arguments.x, 0, rows),
                               arguments.activation, GateLayout::kHalves);
  }
  parallel_for(experts, cols * (count / std::max<std::int64_t>(experts, 1) + 1), [&] {
    return [&, values = row_of(cols), sums = std::vector<double>(static_cast<std::size_t>(cols))](
               std::int64_t expert) mutable {
      std::ranges::fill(sums, 0.0);
      for (std::int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row) {
        const std::int64_t slot = slot_of_row[row];
        if (slot < 0) continue;
        const auto weight = static_cast<double>(row_of<float>(weights, slot / slots)[slot % slots]);
        if (arguments.x) read_row(by_x.view, row, values);
        if (!arguments.x) read_row(arguments.gradient, slot / slots, values);
        for (std::size_t i = 0; i < sums.size(); ++i) {
          sums[i] += weight * static_cast<double>(values[i]);
        }
      }
      std::ranges::transform(sums, values.begin(),
                             [](double sum) { return static_cast<float>(sum); });
      write_row(values, arguments.sums, expert);
    };
  });
}

}  // namespace octofold::cpu
