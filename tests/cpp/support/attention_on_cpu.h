// Attentions on the CPU, of every layout of keys, and a plain softmax in FP64 beside them.
#pragma once

#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/test.h"

namespace octofold::test {

enum class Layout { kDense, kPacked, kPaged };
enum class Scales { kNone, kTensor, kHeads, kBlocks };

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::int64_t kPageSize = 16;

inline std::size_t at(std::int64_t i) { return as_size(i); }

struct Sequence {
  std::int64_t queries, keys;
};

struct Problem {
  Layout layout = Layout::kDense;
  bool query_offsets = false;
  std::vector<Sequence> sequences{{3, 200}, {3, 131}};
  std::int64_t heads = 4, kv_heads = 2, head_size = 24, value_size = head_size;
  Scales k_scales = Scales::kNone, v_scales = Scales::kNone;
  DType q_type = DType::kFloat16, k_type = DType::kE4M3, v_type = DType::kE5M2;
  float scale = 0;
  std::int64_t window_left = -1, window_right = -1;
  AttentionCompute compute = AttentionCompute::kExact;
};

inline std::int64_t sum_of(const std::vector<Sequence>& sequences, std::int64_t Sequence::* part) {
  return std::accumulate(sequences.begin(), sequences.end(), std::int64_t{0},
                         [&](std::int64_t sum, const Sequence& s) { return sum + s.*part; });
}

inline std::int64_t most_of(const std::vector<Sequence>& sequences, std::int64_t Sequence::* part) {
  std::int64_t most = 0;
  for (const Sequence& sequence : sequences) most = std::max(most, sequence.*part);
  return most;
}

// Memory of a problem, and what it says. All that no query may see is NaN.
class Attention {
 public:
  explicit Attention(const Problem& problem) : p(problem) {
    const std::int64_t batch = std::ssize(p.sequences);
    queries_ = sum_of(p.sequences, &Sequence::queries);
    place_keys();
    q_.resize(at(queries_ * p.heads * row(p.head_size)), 0xFFFF);
    out_.resize(at(queries_ * p.heads * row(p.value_size)), 0xFFFF);
    sums_.resize(at(queries_ * p.heads), kNan);
    for (std::int64_t i = 0; i < queries_ * p.heads; ++i) {
      for (std::int64_t d = 0; d < p.head_size; ++d)
        q_[at(i * row(p.head_size) + d)] = random_half();
    }
    fill(p.k_scales, p.head_size, k_, k_scale_);
    fill(p.v_scales, p.value_size, v_, v_scale_);
    query_offsets_ = {0};
    for (const Sequence& s : p.sequences) {
      query_offsets_.push_back(query_offsets_.back() + static_cast<int>(s.queries));
      key_counts_.push_back(static_cast<int>(s.keys));
    }
    workspace_.resize(at(attention_workspace_size(queries_, p.heads, p.value_size)));
    arguments = {.q = rows_view(q_, p.head_size),
                 .k = operand(p.k_type, p.k_scales, p.head_size, k_, k_scale_),
                 .v = operand(p.v_type, p.v_scales, p.value_size, v_, v_scale_),
                 .out = rows_view(out_, p.value_size),
                 .log_sum_exp = sums_view(),
                 .softmax_scale = p.scale,
                 .window_left = p.window_left,
                 .window_right = p.window_right,
                 .compute = p.compute,
                 .workspace = vector(workspace_.data(), DType::kFloat32, std::ssize(workspace_))};
    if (p.query_offsets) {
      arguments.query_offsets = vector(query_offsets_.data(), DType::kInt32, batch + 1);
    }
    if (p.layout == Layout::kPacked) {
      arguments.key_offsets = vector(key_offsets_.data(), DType::kInt32, batch + 1);
    } else {
      arguments.key_counts = vector(key_counts_.data(), DType::kInt32, batch);
    }
    if (p.layout == Layout::kPaged) {
      arguments.page_table = matrix(page_table_.data(), DType::kInt32, batch, pages_of_each_);
    }
  }

  void run_and_compare() {
    attention(arguments);
    for (std::int64_t b = 0; b < std::ssize(p.sequences); ++b) {
      for (std::int64_t i = 0; i < p.sequences[at(b)].queries; ++i) {
        for (std::int64_t head = 0; head < p.heads; ++head) compare(b, i, head);
      }
    }
  }

  // The first numbers of each.
  void copy_keys_to_values() {
    for (std::int64_t i = 0; i < rows_ * p.kv_heads; ++i) {
      std::copy_n(k_.begin() + i * row(p.head_size), p.value_size,
                  v_.begin() + i * row(p.value_size));
    }
  }

  std::uint16_t& query_at(std::int64_t query, std::int64_t head, std::int64_t d) {
    return q_[at((query * p.heads + head) * row(p.head_size) + d)];
  }
  double out_at(std::int64_t query, std::int64_t head, std::int64_t d) const {
    return half(out_[at((query * p.heads + head) * row(p.value_size) + d)]);
  }
  float sum_at(std::int64_t query, std::int64_t head) const {
    return sums_[at(query * p.heads + head)];
  }

  Problem p;
  AttentionArguments arguments;

 private:
  // A gap between rows.
  static std::int64_t row(std::int64_t size) { return size + 8; }

  // Where a key's row lies among all, and the row of its scale of blocks.
  std::int64_t row_of(std::int64_t b, std::int64_t key) const {
    if (p.layout == Layout::kPacked) return key_offsets_[at(b)] + key;
    if (p.layout == Layout::kDense) return b * most_keys_ + key;
    return page_table_[at(b * pages_of_each_ + key / kPageSize)] * kPageSize + key % kPageSize;
  }
  std::int64_t block_of(std::int64_t b, std::int64_t key) const {
    if (p.layout == Layout::kPacked) return key_offsets_[at(b)] / 128 + b + key / 128;
    if (p.layout == Layout::kDense) return b * ((most_keys_ + 127) / 128) + key / 128;
    return row_of(b, key) / kPageSize;
  }

  void place_keys() {
    most_keys_ = most_of(p.sequences, &Sequence::keys);
    const std::int64_t batch = std::ssize(p.sequences);
    key_offsets_ = {0};
    for (const Sequence& s : p.sequences) {
      key_offsets_.push_back(key_offsets_.back() + static_cast<int>(s.keys));
    }
    pages_of_each_ = (most_keys_ + kPageSize - 1) / kPageSize + 1;
    page_table_.resize(at(batch * pages_of_each_));
    std::iota(page_table_.begin(), page_table_.end(), 0);
    std::shuffle(page_table_.begin(), page_table_.end(), random_);
    rows_ = p.layout == Layout::kPacked  ? key_offsets_.back()
            : p.layout == Layout::kDense ? batch * most_keys_
                                         : batch * pages_of_each_ * kPageSize;
    blocks_ = p.layout == Layout::kPacked  ? key_offsets_.back() / 128 + batch
              : p.layout == Layout::kDense ? batch * ((most_keys_ + 127) / 128)
                                           : batch * pages_of_each_;
  }

  void fill(Scales scales, std::int64_t size, std::vector<std::uint8_t>& codes,
            std::vector<float>& values) {
    std::uniform_real_distribution<float> magnitude(0.25f, 2.0f);
    codes.resize(at(rows_ * p.kv_heads * row(size)), 0x7F);
    if (scales == Scales::kTensor) values = {magnitude(random_)};
    if (scales == Scales::kHeads) values.resize(at(p.kv_heads));
    for (float& value : values) value = magnitude(random_);
    if (scales == Scales::kBlocks) values.resize(at(blocks_ * p.kv_heads), kNan);
    for (std::int64_t b = 0; b < std::ssize(p.sequences); ++b) {
      for (std::int64_t key = 0; key < p.sequences[at(b)].keys; ++key) {
        for (std::int64_t head = 0; head < p.kv_heads; ++head) {
          std::uint8_t* run = codes.data() + (row_of(b, key) * p.kv_heads + head) * row(size);
          for (std::int64_t d = 0; d < size; ++d) {
            run[d] = static_cast<std::uint8_t>(random_() & 0xBF);  // below 2
          }
          if (scales == Scales::kBlocks) {
            values[at(block_of(b, key) * p.kv_heads + head)] = magnitude(random_);
          }
        }
      }
    }
  }

  // Of queries, or results.
  MutableTensorView rows_view(std::vector<std::uint16_t>& memory, std::int64_t size) const {
    const std::int64_t head = row(size), query = head * p.heads;
    MutableTensorView view = matrix(memory.data(), p.q_type, 0, 0);
    if (p.query_offsets) {
      view.rank = 3;
      view.shape = {queries_, p.heads, size};
      view.strides = {query, head, 1};
    } else {
      const std::int64_t each = p.sequences[0].queries;
      view.rank = 4;
      view.shape = {std::ssize(p.sequences), each, p.heads, size};
      view.strides = {each * query, query, head, 1};
    }
    return view;
  }

  // [queries, heads] in memory, whatever its shape.
  MutableTensorView sums_view() {
    MutableTensorView view = matrix(sums_.data(), DType::kFloat32, p.heads, queries_);
    view.strides = {1, p.heads};
    if (p.query_offsets) return view;
    const std::int64_t each = p.sequences[0].queries;
    view.rank = 3;
    view.shape = {std::ssize(p.sequences), p.heads, each};
    view.strides = {each * p.heads, 1, p.heads};
    return view;
  }

  AttentionOperand operand(DType dtype, Scales scales, std::int64_t size,
                           std::vector<std::uint8_t>& codes, std::vector<float>& values) const {
    const std::int64_t batch = std::ssize(p.sequences), head = row(size), key = head * p.kv_heads;
    AttentionOperand operand{.data = matrix(codes.data(), dtype, 0, 0)};
    const std::int64_t each = p.layout == Layout::kPaged ? kPageSize : most_keys_;
    operand.data.rank = p.layout == Layout::kPacked ? 3 : 4;
    if (p.layout == Layout::kPacked) {
      operand.data.shape = {rows_, p.kv_heads, size};
      operand.data.strides = {key, head, 1};
    } else {
      operand.data.shape = {rows_ / each, each, p.kv_heads, size};
      operand.data.strides = {each * key, key, head, 1};
    }
    if (scales == Scales::kNone) return operand;
    operand.scale = vector(values.data(), DType::kFloat32, std::ssize(values));
    if (scales != Scales::kBlocks) return operand;
    operand.scale = matrix(values.data(), DType::kFloat32, blocks_, p.kv_heads);
    if (p.layout == Layout::kDense) {
      const std::int64_t blocks = blocks_ / batch;
      operand.scale->rank = 3;
      operand.scale->shape = {batch, blocks, p.kv_heads};
      operand.scale->strides = {blocks * p.kv_heads, p.kv_heads, 1};
    }
    return operand;
  }

  std::uint16_t random_half() {  // below 2 in either type
    const unsigned bits = random_() & 0x87FF;
    const unsigned exponent = p.q_type == DType::kFloat16 ? 0x3800 : 0x3E00;
    return static_cast<std::uint16_t>(bits | exponent);
  }

  double half(std::uint16_t code) const {
    return p.q_type == DType::kFloat16 ? test::decode_bits(code, 5, 10, 15)
                                       : test::decode_bits(code, 8, 7, 127);
  }

  double value(bool is_k, std::int64_t b, std::int64_t key, std::int64_t head,
               std::int64_t d) const {
    const auto& codes = is_k ? k_ : v_;
    const auto& scales = is_k ? k_scale_ : v_scale_;
    const std::int64_t size = is_k ? p.head_size : p.value_size;
    const unsigned code = codes[at((row_of(b, key) * p.kv_heads + head) * row(size) + d)];
    const double number = (is_k ? p.k_type : p.v_type) == DType::kE4M3
                              ? test::decode_bits(code, 4, 3, 7)
                              : test::decode_bits(code, 5, 2, 15);
    switch (is_k ? p.k_scales : p.v_scales) {
      case Scales::kNone: return number;
      case Scales::kTensor: return number * static_cast<double>(scales[0]);
      case Scales::kHeads: return number * static_cast<double>(scales[at(head)]);
      case Scales::kBlocks:
        return number * static_cast<double>(scales[at(block_of(b, key) * p.kv_heads + head)]);
    }
    return 0;
  }

  // What is multiplied: the query itself, or the nearest e4m3 codes to it over a scale of its own.
  std::vector<double> query_of(std::int64_t query, std::int64_t head) const {
    std::vector<double> numbers(at(p.head_size));
    double largest = 0x1p-100;
    for (std::int64_t d = 0; d < p.head_size; ++d) {
      numbers[at(d)] = half(q_[at((query * p.heads + head) * row(p.head_size) + d)]);
      largest = std::max(largest, std::abs(numbers[at(d)]));
    }
    if (p.compute == AttentionCompute::kExact) return numbers;
    const auto top = static_cast<float>(largest);
    const float code_of_top = fp8_query_code(top), scale = top / code_of_top,
                inverse = code_of_top / top;
    for (double& number : numbers) {
      const double over_scale = static_cast<double>(static_cast<float>(number) * inverse);
      const int exponent = std::max(std::ilogb(over_scale), -6);
      const double step = std::exp2(exponent - 3);
      const double code = std::nearbyint(over_scale / step) * step;  // ties to even
      number = std::clamp(code, -448.0, 448.0) * static_cast<double>(scale);
    }
    return numbers;
  }

  void compare(std::int64_t b, std::int64_t i, std::int64_t head) const {
    const auto [queries, keys] = p.sequences[at(b)];
    const std::int64_t query = query_offsets_[at(b)] + i, place = i + keys - queries;
    const std::int64_t kv_head = head / (p.heads / p.kv_heads);
    const double scale = p.scale != 0 ? static_cast<double>(p.scale)
                                      : 1 / std::sqrt(static_cast<double>(p.head_size));
    const std::vector<double> of_query = query_of(query, head);
    double sum = 0;
    std::vector<double> values(at(p.value_size));
    for (std::int64_t key = 0; key < keys; ++key) {
      if (p.window_left >= 0 && place - key > p.window_left) continue;
      if (p.window_right >= 0 && key - place > p.window_right) continue;
      double score = 0;
      for (std::int64_t d = 0; d < p.head_size; ++d) {
        score += of_query[at(d)] * value(true, b, key, kv_head, d);
      }
      const double weight = std::exp(scale * score);
      sum += weight;
      for (std::int64_t d = 0; d < p.value_size; ++d) {
        values[at(d)] += weight * value(false, b, key, kv_head, d);
      }
    }
    const std::string where = "sequence " + std::to_string(b) + ", query " + std::to_string(i) +
                              ", head " + std::to_string(head);
    if (sum == 0) {
      EXPECT_EQ(sum_at(query, head), -std::numeric_limits<float>::infinity()) << where;
    } else {
      EXPECT_NEAR(static_cast<double>(sum_at(query, head)), std::log(sum), 2e-5) << where;
    }
    const double unit = p.q_type == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    for (std::int64_t d = 0; d < p.value_size; ++d) {
      const double expected = sum == 0 ? 0 : values[at(d)] / sum;
      EXPECT_NEAR(out_at(query, head, d), expected, 1.01 * unit * std::abs(expected) + 2e-6)
          << where << ", column " << d;
    }
  }

  std::mt19937 random_{7};
  std::int64_t queries_ = 0, most_keys_ = 0, pages_of_each_ = 0, rows_ = 0, blocks_ = 0;
  std::vector<std::uint16_t> q_, out_;
  std::vector<std::uint8_t> k_, v_;
  std::vector<float> k_scale_, v_scale_, sums_, workspace_;
  std::vector<std::int32_t> query_offsets_, key_offsets_, key_counts_, page_table_;
};

}  // namespace octofold::test
