// An attention in memory that the kernels themselves run over: sequences of any layout, with NaN
// codes in place of all that does not count, and what FP64 makes of them.
#pragma once

#include "octofold/attention_arguments.h"

#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cpu/number_formats.h"
#include "cuda/params.h"
#include "kernels/attention/combine_splits.h"
#include "kernels/attention/few_queries.h"
#include "kernels/attention/many_queries.h"
#include "kernels/attention/wide_heads.h"
#include "support/shaped.h"
#include "support/test.h"

namespace octofold::test {

using config::AttentionForm;
using config::FewQueriesConfig;
using config::KeyLayout;

enum class ScaleKind { kNone, kTensor, kHead, kKeys };

struct AttentionCase {
  std::vector<int> queries{1, 1};
  std::vector<int> keys{70, 9};
  bool packed_queries = false;
  int heads = 4;
  int key_heads = 2;
  int window_left = -1;
  int window_right = -1;
  ScaleKind k_scale = ScaleKind::kNone;
  ScaleKind v_scale = ScaleKind::kNone;
  int splits = 1;
  float scale = 0.2f;
  int page_shift = 4;
  bool fp8_scores = false;
};

template <DType kType>
float decode(unsigned code) {
  if constexpr (kType == DType::kE4M3) return cpu::E4M3::decode(static_cast<std::uint8_t>(code));
  if constexpr (kType == DType::kE5M2) return cpu::E5M2::decode(static_cast<std::uint8_t>(code));
  if constexpr (kType == DType::kFloat16) {
    return cpu::Float16::decode(static_cast<std::uint16_t>(code));
  }
  return cpu::BFloat16::decode(static_cast<std::uint16_t>(code));
}
template <DType kType>
unsigned encode(float value) {
  if constexpr (kType == DType::kE4M3) return cpu::E4M3::encode(value, Overflow::kSaturate);
  if constexpr (kType == DType::kE5M2) return cpu::E5M2::encode(value, Overflow::kSaturate);
  if constexpr (kType == DType::kFloat16) return cpu::Float16::encode(value, Overflow::kNan);
  return cpu::BFloat16::encode(value, Overflow::kNan);
}

// Two sequences in pages, with scales of keys that blocks share.
inline AttentionCase in_pages() {
  return {.queries = {20, 40},
          .keys = {300, 40},
          .packed_queries = true,
          .heads = 2,
          .key_heads = 1,
          .window_left = 150,
          .window_right = 2,
          .k_scale = ScaleKind::kKeys,
          .v_scale = ScaleKind::kKeys,
          .splits = 2};
}

// The code of a query's largest magnitude where its scores are products of e4m3 codes: the nearest
// e4m3 number of 16 steps to the octave's, at most 448 (octofold/attention.h).
inline float fp8_query_code(float largest) {
  int exponent;  // of numbers from 1/2 on
  const float code = std::floor(std::frexp(largest, &exponent) * 16 + 0.5f) * 32;
  return code > 448 ? code / 2 : code;
}

// Keys or values.
template <DType kFp8>
class Side {
 public:
  // Places of keys in memory, which holds `rows` of them; pages are `scale_rows` at most.
  Side(const AttentionCase& given, int head_size, int offset, std::size_t rows,
       const std::vector<std::vector<std::size_t>>& places,
       const std::vector<std::vector<std::size_t>>& scale_rows, ScaleKind kind, std::size_t seed)
      : key_heads_(given.key_heads), head_size_(head_size), offset_(offset), kind_(kind) {
    Random random;
    for (std::size_t i = 0; i < seed; ++i) random();
    const auto width = as_size(key_heads_ * head_size);
    codes_.assign(rows * width + 64, 0x7F);
    for (std::size_t sequence = 0; sequence < places.size(); ++sequence) {
      for (std::size_t key = 0; key < as_size(given.keys[sequence]); ++key) {
        for (std::size_t i = 0; i < width; ++i) {
          const float value = static_cast<float>(static_cast<int>(random() % 4096)) / 999 - 2;
          codes_[as_size(offset) + places[sequence][key] * width + i] =
              static_cast<unsigned char>(encode<kFp8>(value));
        }
      }
    }
    scale_rows_ = scale_rows;
    for (std::size_t i = 0; i < (rows + 8) * as_size(key_heads_); ++i) {
      scales_.push_back(std::exp2f(static_cast<float>(i * 7 % 5) - 1.8f) * (i % 3 == 0 ? -1 : 1));
    }
    places_ = places;
  }

  float at(std::size_t sequence, int key, int head, int dim) const {
    const std::size_t row = places_[sequence][as_size(key)];
    const std::size_t heads = as_size(key_heads_);
    const std::size_t index = (row * heads + as_size(head)) * as_size(head_size_);
    float value = decode<kFp8>(codes_[as_size(offset_ + dim) + index]);
    const std::size_t own = as_size(head);
    if (kind_ == ScaleKind::kTensor) value *= scales_[0];
    if (kind_ == ScaleKind::kHead) value *= scales_[own];
    if (kind_ == ScaleKind::kKeys) {
      value *= scales_[scale_rows_[sequence][as_size(key)] * heads + own];
    }
    return value;
  }

  // A key's numbers, of all heads, become NaN.
  void spoil(std::size_t sequence, std::size_t key) {
    const auto width = as_size(key_heads_ * head_size_);
    const std::size_t first = as_size(offset_) + places_[sequence][key] * width;
    std::fill_n(codes_.begin() + static_cast<std::ptrdiff_t>(first), width, 0x7F);
  }

  // Scales of blocks in memory, from the first on.
  std::vector<float> scales_;

  // `shape`: of blocks and keys, in memory; and of scales that keys share.
  AttentionOperand view(std::vector<std::int64_t> shape,
                        std::vector<std::int64_t> scale_shape) const {
    for (const int size : {key_heads_, head_size_}) shape.push_back(size);
    AttentionOperand operand{.data = tensor(codes_.data() + offset_, kFp8, shape)};
    if (kind_ == ScaleKind::kNone) return operand;
    if (kind_ == ScaleKind::kTensor) scale_shape = {1};
    if (kind_ == ScaleKind::kHead) scale_shape = {key_heads_};
    if (kind_ == ScaleKind::kKeys) scale_shape.push_back(key_heads_);
    operand.scale = tensor(scales_.data(), DType::kFloat32, scale_shape);
    return operand;
  }

 private:
  int key_heads_, head_size_, offset_;
  ScaleKind kind_;
  std::vector<unsigned char> codes_;
  std::vector<std::vector<std::size_t>> places_, scale_rows_;
};

// An attention in memory, and its results.
template <AttentionForm kForm>
class Attention {
 public:
  explicit Attention(const AttentionCase& given, int offset = 0)
      : given_(given), places_(given.keys.size()), scale_rows_(given.keys.size()) {
    place_keys();
    k_.emplace(given, kForm.head_size, offset, rows_, places_, scale_rows_, given.k_scale, 1);
    v_.emplace(given, kForm.shared_latent ? kForm.head_size : kForm.value_size, offset, rows_,
               places_, scale_rows_, given.v_scale, kForm.shared_latent ? 1 : 9);
    int all = 0;
    for (const int queries : given.queries) {
      query_offsets_.push_back(all);
      all += queries;
    }
    query_offsets_.push_back(all);
    Random random;
    for (std::size_t i = 0; i < as_size(all * given.heads * kForm.head_size); ++i) {
      const float value = static_cast<float>(static_cast<int>(random() % 2048)) / 999 - 1;
      q_.push_back(static_cast<unsigned short>(encode<kForm.q>(value)));
    }
    out_.assign(as_size(all * given.heads * kForm.value_size), 0x7FFF);
    log_sum_exp_.assign(as_size(all * given.heads), 77.0f);
    partials_.assign(as_size(all * given.heads * given.splits) * (kForm.value_size + 4), NAN);
  }

  AttentionArguments arguments() {
    const auto batch = std::ssize(given_.queries);
    const std::int64_t all = query_offsets_.back(), heads = given_.heads;
    const auto of_queries = [&](std::vector<std::int64_t> shape) {
      if (given_.packed_queries) return shape.insert(shape.begin(), all), shape;
      shape.insert(shape.begin(), {batch, given_.queries[0]});
      return shape;
    };
    AttentionArguments arguments{
        .q = tensor(std::as_const(q_).data(), kForm.q, of_queries({heads, kForm.head_size})),
        .k = k_->view(key_shape_, scale_shape_),
        .v = v_->view(key_shape_, scale_shape_),
        .out = tensor(out_.data(), kForm.q, of_queries({heads, kForm.value_size})),
        .workspace = vector(partials_.data(), DType::kFloat32, std::ssize(partials_))};
    if (kForm.shared_latent) arguments.v.data.data = nullptr;  // not read
    // [batch, heads, queries], of all heads of a query one after another.
    MutableTensorView sums = tensor(log_sum_exp_.data(), DType::kFloat32, of_queries({heads}));
    const std::size_t at = given_.packed_queries ? 0 : 1;
    std::swap(sums.shape[at], sums.shape[at + 1]);
    std::swap(sums.strides[at], sums.strides[at + 1]);
    arguments.log_sum_exp = sums;
    const auto numbers = [](const std::vector<int>& values) {
      return vector<const void>(values.data(), DType::kInt32, std::ssize(values));
    };
    if (given_.packed_queries) arguments.query_offsets = numbers(query_offsets_);
    if (kForm.layout == KeyLayout::kPacked) arguments.key_offsets = numbers(key_offsets_);
    if (kForm.layout != KeyLayout::kPacked) arguments.key_counts = numbers(given_.keys);
    if (kForm.layout == KeyLayout::kPaged) {
      arguments.page_table =
          tensor(std::as_const(table_).data(), DType::kInt32, {batch, table_pages_});
    }
    arguments.softmax_scale = given_.scale;
    arguments.window_left = given_.window_left;
    arguments.window_right = given_.window_right;
    return arguments;
  }

  // Parameters that src/cuda makes, of blocks with so many rows.
  config::AttentionParams params(int tile_rows) {
    const int group = given_.heads / given_.key_heads;
    const auto tiles = [&](int queries) { return config::ceil_divide(queries * group, tile_rows); };
    const auto batch = static_cast<int>(given_.queries.size());
    config::AttentionParams params = cuda::params_of(
        arguments(),
        {.row_tiles = given_.packed_queries ? query_offsets_.back() * group / tile_rows + batch
                                            : tiles(given_.queries[0]),
         .splits = given_.splits});
    // Results then count as at odd places.
    if (given_.packed_queries) params.out_vectors = false;
    return params;
  }

  template <auto kConfig>
  void run(const config::AttentionParams& params) {
    run<kConfig>(params, pieces(params), [&] {
      using Config = std::remove_cvref_t<decltype(kConfig)>;
      if constexpr (std::is_same_v<Config, FewQueriesConfig>) {
        few_queries_kernel<kConfig>(params);
      } else if constexpr (std::is_same_v<Config, config::WideHeadsConfig>) {
        wide_heads_kernel<kConfig>(params);
      } else {
        many_queries_kernel<kConfig>(params);
      }
    });
  }

  // Returns the number of pieces of the work, each of which a block may have.
  static std::int64_t pieces(const config::AttentionParams& params) {
    return std::int64_t{params.key_heads} * params.splits * params.row_tiles *
           (params.query_offsets ? 1 : params.batch);
  }

  // By a kernel that the caller has.
  template <auto kConfig, typename Kernel>
  void run(const config::AttentionParams& params, std::int64_t blocks, Kernel&& kernel) {
    static_assert(kConfig.invalid_reason() == nullptr);
    ASSERT_LE(kConfig.shared_bytes(), static_cast<int>(ptx::shared.size()));
    ptx::shared.fill(0x7F);
    launch(blocks, kConfig.threads(), kernel);
    EXPECT_TRUE(ptx::shared.is_filled_behind(kConfig.shared_bytes(), 0x7F));
    if constexpr (kConfig.form.split) {
      constexpr config::CombineSplitsConfig kCombine{kForm.q, kForm.value_size, 2,
                                                     kForm.part_keys > 0};
      const auto rows = static_cast<int>(log_sum_exp_.size());
      launch(config::ceil_divide(rows * kCombine.warps_of_row(), 2), kCombine.threads(),
             [&] { combine_splits_kernel<kCombine>(params); });
    }
  }

  void expect_right() const {
    for (std::size_t sequence = 0; sequence < given_.queries.size(); ++sequence) {
      for (int query = 0; query < given_.queries[sequence]; ++query) {
        for (int head = 0; head < given_.heads; ++head) expect_row(sequence, query, head);
      }
    }
  }

  std::vector<unsigned short> q_, out_;
  std::vector<float> log_sum_exp_;
  std::vector<int> query_offsets_, key_offsets_, table_;
  std::optional<Side<kForm.k>> k_;
  std::optional<Side<kForm.v>> v_;

 private:
  void place_keys() {
    const auto most = as_size(*std::ranges::max_element(given_.keys));
    const std::size_t page = std::size_t{1} << given_.page_shift, batch = given_.keys.size();
    std::size_t outer_rows = 0, outer_scale_rows = 0;
    if (kForm.layout == KeyLayout::kDense) {
      outer_rows = most + 5;
      rows_ = batch * outer_rows;
      outer_scale_rows = outer_rows / 128 + 1;
      key_shape_ = {std::ssize(given_.keys), static_cast<std::int64_t>(outer_rows)};
      scale_shape_ = {std::ssize(given_.keys), static_cast<std::int64_t>(outer_scale_rows)};
    } else if (kForm.layout == KeyLayout::kPacked) {
      rows_ = as_size(std::accumulate(given_.keys.begin(), given_.keys.end(), 0));
      key_shape_ = {static_cast<std::int64_t>(rows_)};
      scale_shape_ = {static_cast<std::int64_t>(rows_ / 128 + batch)};
    } else {
      table_pages_ = static_cast<int>(most / page + 2);
      std::size_t pages = batch * as_size(table_pages_) + 3;
      if (pages % 5 == 0) ++pages;  // entries are 5 apart, and none has another's page
      rows_ = pages * page;
      key_shape_ = {static_cast<std::int64_t>(pages), static_cast<std::int64_t>(page)};
      scale_shape_ = {static_cast<std::int64_t>(pages)};
      // Entries of the table that do not count are false.
      table_.assign(batch * as_size(table_pages_), -1'000'000);
    }
    std::size_t before = 0;
    for (std::size_t sequence = 0; sequence < batch; ++sequence) {
      key_offsets_.push_back(static_cast<int>(before));
      for (std::size_t key = 0; key < as_size(given_.keys[sequence]); ++key) {
        std::size_t place = before + key, scale_row = before / 128 + sequence + key / 128;
        if (kForm.layout == KeyLayout::kDense) {
          place = sequence * outer_rows + key;
          scale_row = sequence * outer_scale_rows + key / 128;
        } else if (kForm.layout == KeyLayout::kPaged) {
          const std::size_t entry = sequence * as_size(table_pages_) + key / page;
          scale_row = (entry * 5 + 1) % (rows_ / page);
          table_[entry] = static_cast<int>(scale_row);
          place = scale_row * page + key % page;
        }
        places_[sequence].push_back(place);
        scale_rows_[sequence].push_back(scale_row);
      }
      before += as_size(given_.keys[sequence]);
    }
    key_offsets_.push_back(static_cast<int>(before));
  }

  // Returns the query that scores are products of, or its e4m3 codes times a scale of their own.
  std::vector<double> query_of(int row) const {
    std::vector<double> q;
    float largest = 0x1p-100f;
    for (int i = 0; i < kForm.head_size; ++i) {
      const float number = decode<kForm.q>(q_[as_size(row * kForm.head_size + i)]);
      largest = std::max(largest, std::abs(number));
      q.push_back(double{number});
    }
    if (!given_.fp8_scores) return q;
    const float code = fp8_query_code(largest);
    for (double& number : q) {
      const float in_codes = static_cast<float>(number) * (code / largest);
      number =
          double{decode<DType::kE4M3>(encode<DType::kE4M3>(in_codes))} * double{largest / code};
    }
    return q;
  }

  void expect_row(std::size_t sequence, int query, int head) const {
    const int keys = given_.keys[sequence], key_head = head / (given_.heads / given_.key_heads);
    const int row = (query_offsets_[sequence] + query) * given_.heads + head;
    const std::vector<double> q = query_of(row);
    const auto is_nan = [](double number) { return std::isnan(number); };
    if (std::ranges::any_of(q, is_nan)) {
      for (int i = 0; i < kForm.value_size; ++i) {
        ASSERT_TRUE(std::isnan(decode<kForm.q>(out_[as_size(row * kForm.value_size + i)]))) << row;
      }
      ASSERT_TRUE(std::isnan(log_sum_exp_[as_size(row)])) << row;
      return;
    }
    const int place = query + keys - given_.queries[sequence];
    std::vector<double> scores;
    std::vector<int> seen;
    for (int key = 0; key < keys; ++key) {
      if (given_.window_left >= 0 && key < place - given_.window_left) continue;
      if (given_.window_right >= 0 && key > place + given_.window_right) continue;
      double score = 0;
      for (int i = 0; i < kForm.head_size; ++i) {
        score += q[as_size(i)] * k_->at(sequence, key, key_head, i);
      }
      scores.push_back(score * given_.scale);
      seen.push_back(key);
    }
    double sum = 0;
    const double most = seen.empty() ? 0 : *std::ranges::max_element(scores);
    for (const double score : scores) sum += std::exp(score - most);
    const double unit = kForm.q == DType::kFloat16 ? 1.0 / 1024 : 1.0 / 128;
    for (int i = 0; i < kForm.value_size; ++i) {
      double value = 0, terms = 0;
      for (std::size_t j = 0; j < seen.size(); ++j) {
        const double term =
            std::exp(scores[j] - most) / sum * v_->at(sequence, seen[j], key_head, i);
        value += term;
        terms += std::abs(term);
      }
      const float actual = decode<kForm.q>(out_[as_size(row * kForm.value_size + i)]);
      if (keys == 1 && !seen.empty()) {  // its values times their scale, rounded once
        const float only = v_->at(sequence, 0, key_head, i);
        ASSERT_EQ(actual, decode<kForm.q>(encode<kForm.q>(only))) << i;
      }
      ASSERT_NEAR(actual, value, terms * unit + 1e-5)
          << sequence << " query " << query << " head " << head << " of " << i;
    }
    const float log_sum = log_sum_exp_[as_size(row)];
    if (seen.empty()) {
      ASSERT_EQ(log_sum, -std::numeric_limits<float>::infinity());
    } else {
      ASSERT_NEAR(log_sum, most + std::log(sum), 1e-3 + std::abs(most) * 1e-5);
    }
  }

  AttentionCase given_;
  std::vector<std::vector<std::size_t>> places_, scale_rows_;
  std::size_t rows_ = 0;  // of keys, in memory
  int table_pages_ = 0;
  std::vector<std::int64_t> key_shape_, scale_shape_;
  std::vector<float> partials_;
};

}  // namespace octofold::test
