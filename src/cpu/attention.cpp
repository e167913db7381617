#include "kernels/attention/config/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/check.h"
#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cpu/number_formats.h"
#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

constexpr std::int64_t kQueriesOfItem = 32;
constexpr std::int64_t kKeysOfBlock = 128;
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

std::int64_t int_at(const TensorView& tensor, std::int64_t i) {
  return static_cast<const std::int32_t*>(tensor.data)[i];
}

// Queries or keys of a sequence: those from `begin` on of the tensor that has all of them, or of
// the sequence's own.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

Range queries_of(const AttentionArguments& arguments, std::int64_t sequence) {
  if (!arguments.query_offsets) return {0, arguments.q.shape[1]};
  const std::int64_t begin = int_at(*arguments.query_offsets, sequence);
  return {begin, int_at(*arguments.query_offsets, sequence + 1) - begin};
}

Range keys_of(const AttentionArguments& arguments, std::int64_t sequence) {
  if (arguments.key_offsets) {
    const std::int64_t begin = int_at(*arguments.key_offsets, sequence);
    return {begin, int_at(*arguments.key_offsets, sequence + 1) - begin};
  }
  if (arguments.key_counts) return {0, int_at(*arguments.key_counts, sequence)};
  return {0, arguments.k.data.shape[1]};
}

// The index of the element of a query, head and first column.
std::int64_t place_of(const TensorView& q, std::int64_t sequence, std::int64_t query,
                      std::int64_t head) {
  return q.rank == 3 ? query * q.strides[0] + head * q.strides[1]
                     : sequence * q.strides[0] + query * q.strides[1] + head * q.strides[2];
}

// Keys, or values, of one sequence and head.
class Side {
 public:
  Side(const AttentionArguments& arguments, const AttentionOperand& operand, std::int64_t sequence,
       std::int64_t begin, std::int64_t head)
      : arguments_(arguments), operand_(operand), sequence_(sequence), begin_(begin), head_(head) {}

  void load(std::int64_t key, std::span<float> values) const {
    const TensorView& data = operand_.data;
    std::int64_t place = 0;
    if (arguments_.key_offsets) {
      place = (begin_ + key) * data.strides[0] + head_ * data.strides[1];
    } else {
      const auto [outer, inner] = page_of(key);
      place = outer * data.strides[0] + inner * data.strides[1] + head_ * data.strides[2];
    }
    cpu::load(data.data, data.dtype, place, 1, std::ssize(values), values.data());
  }

  float scale_of(std::int64_t key) const {
    if (!operand_.scale) return 1;
    const TensorView& scale = *operand_.scale;
    const auto* values = static_cast<const float*>(scale.data);
    if (scale.element_count() == 1) return values[0];
    if (scale.rank == 1) return values[head_ * scale.strides[0]];
    if (scale.rank == 3) {
      return values[sequence_ * scale.strides[0] + key / kKeysPerScale * scale.strides[1] +
                    head_ * scale.strides[2]];
    }
    const std::int64_t row = arguments_.page_table
                                 ? page_of(key).begin
                                 : begin_ / kKeysPerScale + sequence_ + key / kKeysPerScale;
    return values[row * scale.strides[0] + head_ * scale.strides[1]];
  }

 private:
  // The page, or the sequence itself, and the key's place in it.
  Range page_of(std::int64_t key) const {
    if (!arguments_.page_table) return {sequence_, key};
    const std::int64_t size = operand_.data.shape[1];
    return {
        int_at(*arguments_.page_table, sequence_ * arguments_.page_table->strides[0] + key / size),
        key % size};
  }

  const AttentionArguments& arguments_;
  const AttentionOperand& operand_;
  std::int64_t sequence_, begin_, head_;
};

// Some queries of a sequence and a head.
struct Item {
  std::int64_t sequence, head, first;
};

// Two levels of sums in FP32: of at most 128 numbers, over lanes that a compiler may hold in one
// register, and of those.
float product_of(std::span<const float> a, std::span<const float> b) {
  float sum = 0;
  for (std::size_t first = 0; first < a.size(); first += kScaleBlock) {
    const std::size_t end = std::min(first + kScaleBlock, a.size());
    std::array<float, 8> lanes{};
    for (std::size_t i = first; i < end; i += lanes.size()) {  // sizes are multiples of 8
      for (std::size_t lane = 0; lane < lanes.size(); ++lane)
        lanes[lane] += a[i + lane] * b[i + lane];
    }
    float of_block = 0;
    for (const float lane : lanes) of_block += lane;
    sum += of_block;
  }
  return sum;
}

// A query becomes what its e4m3 codes hold, and counts in the scale that is returned. That is never
// so small that it has few bits, or is none. NaN stays, and what is infinite becomes NaN.
float round_to_codes(std::span<float> q) {
  float largest = 0x1p-100f;
  for (const float number : q) largest = std::max(largest, std::abs(number));
  const auto code =
      std::bit_cast<float>(config::fp8_query_code(std::bit_cast<std::uint32_t>(largest)));
  const float inverse = code / largest;
  for (float& number : q) {
    number = E4M3::decode(E4M3::encode(number * inverse, Overflow::kSaturate));
  }
  return largest / code;
}

// The softmax of a query, block of keys by block: sums of weights and of weighted values, relative
// to exp(most). Within a block values are summed in FP32, over blocks in FP64.
struct QueryRow {
  std::vector<float> q;
  float unit = 1;  // of q
  std::vector<double> values;
  float most = kNoScore;
  double weights = 0;
  std::int64_t first_key = 0, end_key = 0;  // those that it sees

  void add(std::span<float> scores, std::span<const float> scales, const float* block,
           std::vector<float>& sums) {
    float larger = most;
    for (const float score : scores) larger = std::max(larger, score);
    const float shift = larger == kNoScore ? 0 : larger;
    const double kept = std::exp(static_cast<double>(most) - static_cast<double>(shift));
    weights *= kept;
    std::ranges::fill(sums, 0.0f);
    for (std::size_t key = 0; key < scores.size(); ++key) {
      const float weight = std::exp(scores[key] - shift);
      weights += static_cast<double>(weight);
      const float scaled = weight * scales[key];
      const float* of_key = block + key * sums.size();
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += scaled * of_key[i];
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = values[i] * kept + static_cast<double>(sums[i]);
    }
    most = larger;
  }
};

// The first and the end of the keys that a query sees: those of the window that there are.
void limit_keys(const AttentionArguments& arguments, std::int64_t query, std::int64_t queries,
                std::int64_t keys, QueryRow& row) {
  const std::int64_t place = query + keys - queries;
  // Windows are cut to where they cover everything, lest sums overflow.
  const std::int64_t all = keys + queries;
  row.first_key = 0;
  row.end_key = keys;
  if (arguments.window_left >= 0) {
    row.first_key = std::max<std::int64_t>(0, place - std::min(arguments.window_left, all));
  }
  if (arguments.window_right >= 0) {
    row.end_key = std::min(keys, place + std::min(arguments.window_right, all) + 1);
  }
  row.end_key = std::max(row.end_key, row.first_key);
}

// The buffers and sums of one thread.
class Worker {
 public:
  explicit Worker(const AttentionArguments& arguments)
      : arguments_(arguments),
        head_size_(static_cast<std::size_t>(
            arguments.q.shape[static_cast<std::size_t>(arguments.q.rank) - 1])),
        value_size_(static_cast<std::size_t>(
            arguments.out.shape[static_cast<std::size_t>(arguments.out.rank) - 1])),
        sums_(value_size_),
        k_(kKeysOfBlock * head_size_),
        v_(kKeysOfBlock * value_size_) {}

  void operator()(const Item& item) {
    const Range queries = queries_of(arguments_, item.sequence);
    const Range keys = keys_of(arguments_, item.sequence);
    const std::int64_t count = std::min(kQueriesOfItem, queries.count - item.first);
    start_rows(item, queries, keys.count, count);
    std::int64_t first = keys.count, end = 0;  // that any row sees
    for (const QueryRow& row : rows_) {
      if (row.first_key == row.end_key) continue;
      first = std::min(first, row.first_key);
      end = std::max(end, row.end_key);
    }
    const std::int64_t kv_heads =
        arguments_.k.data.shape[static_cast<std::size_t>(arguments_.k.data.rank) - 2];
    const std::int64_t kv_head = item.head / (heads() / kv_heads);
    const Side k(arguments_, arguments_.k, item.sequence, keys.begin, kv_head);
    const Side v(arguments_, arguments_.v, item.sequence, keys.begin, kv_head);
    // Blocks begin at places that depend on the keys alone, not on what other rows see.
    for (first -= first % kKeysOfBlock; first < end; first += kKeysOfBlock)
      add_block(k, v, first, std::min(end - first, kKeysOfBlock));
    for (std::int64_t i = 0; i < count; ++i) {
      finish(rows_[static_cast<std::size_t>(i)], item, queries.begin + item.first + i);
    }
  }

 private:
  std::int64_t heads() const {
    return arguments_.q.shape[static_cast<std::size_t>(arguments_.q.rank) - 2];
  }

  void start_rows(const Item& item, const Range& queries, std::int64_t keys, std::int64_t count) {
    rows_.assign(static_cast<std::size_t>(count), QueryRow{});
    for (std::int64_t i = 0; i < count; ++i) {
      QueryRow& row = rows_[static_cast<std::size_t>(i)];
      const std::int64_t query = item.first + i;
      row.q.resize(head_size_);
      row.values.resize(value_size_);
      load(arguments_.q.data, arguments_.q.dtype,
           place_of(arguments_.q, item.sequence, queries.begin + query, item.head), 1,
           std::ssize(row.q), row.q.data());
      if (arguments_.compute == AttentionCompute::kFp8) row.unit = round_to_codes(row.q);
      limit_keys(arguments_, query, queries.count, keys, row);
    }
  }

  void add_block(const Side& k, const Side& v, std::int64_t first, std::int64_t count) {
    std::array<float, kKeysOfBlock> k_scales, v_scales, scores;
    for (std::int64_t key = 0; key < count; ++key) {
      const auto i = static_cast<std::size_t>(key);
      k.load(first + key, {k_.data() + i * head_size_, head_size_});
      v.load(first + key, {v_.data() + i * value_size_, value_size_});
      k_scales[i] = k.scale_of(first + key) * arguments_.softmax_scale;
      v_scales[i] = v.scale_of(first + key);
    }
    for (QueryRow& row : rows_) {
      const auto begin =
          static_cast<std::size_t>(std::clamp(row.first_key - first, std::int64_t{0}, count));
      const auto end =
          static_cast<std::size_t>(std::clamp(row.end_key - first, std::int64_t{0}, count));
      if (begin >= end) continue;
      for (std::size_t i = begin; i < end; ++i) {
        const float sum = product_of(row.q, {k_.data() + i * head_size_, head_size_});
        scores[i] = sum * row.unit * k_scales[i];
      }
      row.add(std::span(scores).subspan(begin, end - begin),
              std::span(v_scales).subspan(begin, end - begin), v_.data() + begin * value_size_,
              sums_);
    }
  }

  void finish(const QueryRow& row, const Item& item, std::int64_t query) {
    // Weights of 0 only: no key, or none whose score is more than -inf.
    const bool none = row.weights == 0;
    for (std::size_t i = 0; i < value_size_; ++i) {
      sums_[i] = none ? 0 : static_cast<float>(row.values[i] / row.weights);
    }
    store(sums_.data(), std::ssize(sums_), arguments_.out.data, arguments_.out.dtype,
          place_of(arguments_.out, item.sequence, query, item.head), Overflow::kSaturate);
    if (!arguments_.log_sum_exp) return;
    const MutableTensorView& all = *arguments_.log_sum_exp;
    const std::int64_t place =
        all.rank == 2
            ? item.head * all.strides[0] + query * all.strides[1]
            : item.sequence * all.strides[0] + item.head * all.strides[1] + query * all.strides[2];
    static_cast<float*>(all.data)[place] =
        none ? kNoScore : static_cast<float>(static_cast<double>(row.most) + std::log(row.weights));
  }

  const AttentionArguments& arguments_;
  std::size_t head_size_, value_size_;
  std::vector<QueryRow> rows_;
  std::vector<float> sums_, k_, v_;
};

std::int64_t batch_of(const AttentionArguments& arguments) {
  return arguments.query_offsets ? arguments.query_offsets->shape[0] - 1 : arguments.q.shape[0];
}

void check_what_indices_say(const AttentionArguments& arguments) {
  const core::Arguments check("attention");
  const TensorView& k = arguments.k.data;
  if (arguments.query_offsets) {
    core::require_ascending_offsets(check, "query_offsets", *arguments.query_offsets,
                                    arguments.q.shape[0]);
  }
  if (arguments.key_offsets) {
    core::require_ascending_offsets(check, "key_offsets", *arguments.key_offsets, k.shape[0]);
  }
  if (!arguments.key_counts) return;
  if (!arguments.page_table) {
    return core::require_counts(check, "key_counts", *arguments.key_counts, k.shape[1]);
  }
  const TensorView& table = *arguments.page_table;
  constexpr std::int64_t kMostPages = std::numeric_limits<std::int32_t>::max();
  core::require_counts(check, "key_counts", *arguments.key_counts,
                       std::min(table.shape[1], kMostPages) * k.shape[1]);
  for (std::int64_t sequence = 0; sequence < table.shape[0]; ++sequence) {
    const std::int64_t keys = int_at(*arguments.key_counts, sequence);
    for (std::int64_t i = 0; i * k.shape[1] < keys; ++i) {
      const std::int64_t page = int_at(table, sequence * table.strides[0] + i);
      if (page >= 0 && page < k.shape[0]) continue;
      check.fail("page_table", core::format("entries from 0 to {}", k.shape[0] - 1),
                 core::format("{} at [{}, {}]", page, sequence, i));
    }
  }
}

}  // namespace

void attention(const AttentionArguments& arguments) {
  check_what_indices_say(arguments);
  const auto head_at = static_cast<std::size_t>(arguments.q.rank) - 2;
  std::vector<Item> items;
  std::int64_t most_keys = 0;
  for (std::int64_t sequence = 0; sequence < batch_of(arguments); ++sequence) {
    const std::int64_t queries = queries_of(arguments, sequence).count;
    most_keys = std::max(most_keys, keys_of(arguments, sequence).count);
    for (std::int64_t head = 0; head < arguments.q.shape[head_at]; ++head) {
      for (std::int64_t first = 0; first < queries; first += kQueriesOfItem) {
        items.push_back({sequence, head, first});
      }
    }
  }
  parallel_for(std::ssize(items), most_keys * arguments.q.shape[head_at + 1], [&] {
    return [&, worker = Worker(arguments)](std::int64_t i) mutable {
      worker(items[static_cast<std::size_t>(i)]);
    };
  });
}

}  // namespace octofold::cpu
