// Calls that attention refuses, and what it says of them.
#include "octofold/attention.h"
#include "octofold/octofold.h"

#include "support/test.h"

namespace octofold {
namespace {

template <typename View>
View shaped(View view, const std::vector<std::int64_t>& shape) {
  view.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
  }
  return view;
}

class AttentionErrors : public testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 2, kQueries = 3, kHeads = 4, kKvHeads = 2, kKeys = 256,
                                kSize = 8, kPages = 32, kPageSize = 16;

  AttentionArguments dense() {
    const auto half = [](std::vector<std::uint16_t>& memory) {
      return matrix(memory.data(), DType::kFloat16, 0, 0);
    };
    return {
        .q = shaped(half(q_), {kBatch, kQueries, kHeads, kSize}),
        .k = {.data = codes(k_, {kBatch, kKeys, kKvHeads, kSize}), .scale = floats(scale_, {2})},
        .v = {.data = codes(v_, {kBatch, kKeys, kKvHeads, kSize})},
        .out = shaped(half(out_), {kBatch, kQueries, kHeads, kSize}),
        .log_sum_exp = floats(sums_, {kBatch, kHeads, kQueries}),
        .workspace = vector(workspace_.data(), DType::kFloat32, std::ssize(workspace_))};
  }

  AttentionArguments packed() {
    AttentionArguments given = dense();
    for (const auto member : {&AttentionArguments::k, &AttentionArguments::v}) {
      (given.*member).data = shaped((given.*member).data, {kBatch * kKeys, kKvHeads, kSize});
    }
    given.q = shaped(given.q, {kBatch * kQueries, kHeads, kSize});
    given.out = shaped(given.out, {kBatch * kQueries, kHeads, kSize});
    given.log_sum_exp = shaped(*given.log_sum_exp, {kHeads, kBatch * kQueries});
    given.query_offsets = ints(query_offsets_);
    given.key_offsets = ints(key_offsets_);
    return given;
  }

  AttentionArguments paged() {
    AttentionArguments given = dense();
    for (const auto member : {&AttentionArguments::k, &AttentionArguments::v}) {
      (given.*member).data = shaped((given.*member).data, {kPages, kPageSize, kKvHeads, kSize});
    }
    given.key_counts = ints(key_counts_);
    given.page_table = matrix(page_table_.data(), DType::kInt32, kBatch, 3);
    return given;
  }

  static std::string error(AttentionArguments given, auto&& spoil) {
    spoil(given);
    return test::error_of([&] { attention(given); });
  }

  static TensorView codes(const std::vector<std::uint8_t>& memory,
                          const std::vector<std::int64_t>& shape) {
    return shaped(matrix(memory.data(), DType::kE4M3, 0, 0), shape);
  }
  static MutableTensorView floats(std::vector<float>& memory,
                                  const std::vector<std::int64_t>& shape) {
    return shaped(matrix(memory.data(), DType::kFloat32, 0, 0), shape);
  }
  static TensorView ints(const std::vector<std::int32_t>& memory) {
    return vector(memory.data(), DType::kInt32, std::ssize(memory));
  }

  std::vector<std::uint16_t> q_ = std::vector<std::uint16_t>(192), out_ = q_;
  std::vector<std::uint8_t> k_ = std::vector<std::uint8_t>(8192), v_ = k_;
  std::vector<float> scale_ = std::vector<float>(64, 1.0f), sums_ = std::vector<float>(24);
  std::vector<float> workspace_ =
      std::vector<float>(as_size(attention_workspace_size(kBatch * kQueries, kHeads, kSize)));
  std::vector<std::int32_t> query_offsets_{0, 2, 6}, key_offsets_{0, 100, 512}, key_counts_{33, 7},
      page_table_{31, 0, 5, 9, -7, 99};
};

TEST_F(AttentionErrors, OfWhatIsRightThereAreNone) {
  for (const auto& given : {dense(), packed(), paged()}) {
    EXPECT_EQ(error(given, [](auto&) {}), "no error");
  }
  EXPECT_EQ(error(packed(),
                  [](auto& a) {
                    a.log_sum_exp.reset();
                    a.key_offsets.reset();
                    a.k.data = shaped(a.k.data, {kBatch, kKeys, kKvHeads, kSize});
                    a.v.data = a.k.data;
                  }),
            "no error");
}

TEST_F(AttentionErrors, OfQueries) {
  const auto spoiled = [&](auto&& spoil) { return error(dense(), spoil); };
  EXPECT_THAT(spoiled([](auto& a) { a.q.rank = 3; }),
              HasSubstr("attention: argument 'q': expected [batch, queries, heads, head_size], got "
                        "float16 [2, 3, 4]"));
  EXPECT_THAT(error(packed(), [](auto& a) { a.q.rank = 2; }),
              HasSubstr("'q': expected [total_queries, heads, head_size] with 'query_offsets'"));
  EXPECT_THAT(spoiled([](auto& a) { a.q.dtype = DType::kFloat32; }),
              HasSubstr("'q': expected dtype float16 or bfloat16, got float32"));
  EXPECT_THAT(spoiled([](auto& a) { a.q.shape[3] = 12; }),
              HasSubstr("'q': expected a head_size that is a multiple of 8 from 8 to 576, got 12"));
  EXPECT_THAT(spoiled([](auto& a) { a.q.strides[3] = 2; }),
              HasSubstr("'q': expected a contiguous last dimension"));
  EXPECT_THAT(spoiled([](auto& a) { a.q.data = nullptr; }), HasSubstr("'q': expected data"));
  EXPECT_THAT(error(packed(), [](auto& a) { a.query_offsets->dtype = DType::kFloat32; }),
              HasSubstr("'query_offsets': expected dtype int32"));
  EXPECT_THAT(error(packed(), [](auto& a) { a.query_offsets->shape[0] = 1; }),
              HasSubstr("'query_offsets'"));
  EXPECT_THAT(spoiled([](auto& a) { a.softmax_scale = std::numeric_limits<float>::infinity(); }),
              HasSubstr("'softmax_scale': expected a finite number, got inf"));
  EXPECT_THAT(spoiled([](auto& a) { a.compute = static_cast<AttentionCompute>(2); }),
              HasSubstr("attention: argument 'compute': expected an AttentionCompute, got 2"));
}

TEST_F(AttentionErrors, OfKeysAndValues) {
  const auto spoiled = [&](auto&& spoil) { return error(dense(), spoil); };
  EXPECT_THAT(spoiled([](auto& a) { a.k.data.rank = 3; }),
              HasSubstr("'k': expected [batch, keys, kv_heads, head_size], got e4m3 [2, 256, 2]"));
  EXPECT_THAT(error(packed(), [](auto& a) { a.k.data.rank = 2; }),
              HasSubstr("'k': expected [total_keys, kv_heads, head_size] with 'key_offsets'"));
  EXPECT_THAT(spoiled([](auto& a) { a.k.data.shape[3] = 16; }),
              HasSubstr("'k': expected head_size = 8, as 'q' has, got 16"));
  EXPECT_THAT(spoiled([](auto& a) { a.k.data.shape[2] = 3; }),
              HasSubstr("'k': expected kv_heads that divide the 4 heads of 'q', got 3"));
  EXPECT_THAT(spoiled([](auto& a) { a.k.data.shape[2] = 0; }), HasSubstr("'k': expected kv_heads"));
  EXPECT_THAT(spoiled([](auto& a) { a.k.data.shape[0] = 1; }),
              HasSubstr("'k': expected batch = 2, as the queries have, got 1"));
  EXPECT_THAT(spoiled([](auto& a) { a.k.data.dtype = DType::kFloat16; }),
              HasSubstr("'k': expected dtype e4m3 or e5m2, got float16"));
  EXPECT_THAT(
      spoiled([](auto& a) { a.v.data.shape[1] = 5; }),
      HasSubstr("'v': expected [2, 256, 2, value_size], as 'k' has, got e4m3 [2, 5, 2, 8]"));
  EXPECT_THAT(spoiled([](auto& a) { a.v.data.rank = 3; }), HasSubstr("'v': expected [2, 256, 2, "));
  for (const std::int64_t size : {12, 0, 520}) {
    EXPECT_THAT(spoiled([&](auto& a) { a.v.data.shape[3] = size; }),
                HasSubstr("'v': expected a value_size that is a multiple of 8 from 8 to 512, got " +
                          std::to_string(size)));
  }
  EXPECT_THAT(spoiled([](auto& a) { a.v.data.shape[3] = 16; }),
              HasSubstr("'out': expected shape [2, 3, 4, 16], got [2, 3, 4, 8]"));
  EXPECT_THAT(spoiled([](auto& a) { a.v.data.strides[3] = 2; }),
              HasSubstr("'v': expected a contiguous last dimension"));
  EXPECT_THAT(spoiled([](auto& a) { a.v.data.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("'v': expected a tensor on cpu, got one on cuda:0"));
}

TEST_F(AttentionErrors, OfScales) {
  const auto spoiled = [&](const AttentionArguments& given, std::vector<std::int64_t> shape) {
    return error(given, [&](auto& a) { a.v.scale = floats(scale_, shape); });
  };
  EXPECT_EQ(spoiled(dense(), {}), "no error");
  EXPECT_EQ(spoiled(dense(), {2, 2, 2}), "no error");
  EXPECT_EQ(spoiled(packed(), {6, 2}), "no error");
  EXPECT_EQ(spoiled(paged(), {32, 2}), "no error");
  EXPECT_THAT(spoiled(dense(), {3}),
              HasSubstr("'v.scale': expected one element, shape [2] or shape [2, 2, 2], got "
                        "float32 [3]"));
  EXPECT_THAT(spoiled(packed(), {4, 2}), HasSubstr("shape [2] or shape [6, 2], got"));
  EXPECT_THAT(spoiled(paged(), {6, 2}), HasSubstr("shape [2] or shape [32, 2], got"));
  EXPECT_THAT(error(dense(), [](auto& a) { a.k.scale->dtype = DType::kFloat16; }),
              HasSubstr("'k.scale': expected dtype float32"));
  EXPECT_THAT(error(dense(), [](auto& a) { a.k.scale->data = nullptr; }),
              HasSubstr("'k.scale': expected data"));
  EXPECT_THAT(error(dense(), [](auto& a) { a.k.scale->device = {DeviceType::kCuda, 0}; }),
              HasSubstr("'k.scale': expected a tensor on cpu"));
}

TEST_F(AttentionErrors, OfWhatGoesTogether) {
  EXPECT_THAT(
      error(packed(),
            [](auto& a) {
              a.query_offsets.reset();
              a.q = shaped(a.q, {kBatch, kQueries, kHeads, kSize});
            }),
      HasSubstr("'key_offsets': expected it to be omitted without 'query_offsets', got one"));
  EXPECT_THAT(error(packed(), [&](auto& a) { a.key_counts = ints(key_counts_); }),
              HasSubstr("'key_counts': expected it to be omitted beside 'key_offsets', got one"));
  EXPECT_THAT(error(packed(), [&](auto& a) { a.page_table = paged().page_table; }),
              HasSubstr("'page_table': expected it to be omitted beside 'key_offsets', got one"));
  EXPECT_THAT(error(paged(), [](auto& a) { a.key_counts.reset(); }),
              HasSubstr("'key_counts': expected one beside 'page_table', got none"));
}

TEST_F(AttentionErrors, OfPlaces) {
  EXPECT_THAT(error(packed(), [](auto& a) { a.key_offsets->shape[0] = 2; }),
              HasSubstr("'key_offsets': expected shape [3], got [2]"));
  EXPECT_THAT(error(paged(), [](auto& a) { a.key_counts->shape[0] = 1; }),
              HasSubstr("'key_counts': expected shape [2], got [1]"));
  EXPECT_THAT(error(paged(), [](auto& a) { a.key_counts->strides[0] = 2; }),
              HasSubstr("'key_counts': expected a contiguous vector"));
  EXPECT_THAT(error(paged(), [](auto& a) { a.key_counts->dtype = DType::kFloat32; }),
              HasSubstr("'key_counts': expected dtype int32"));
  EXPECT_THAT(error(paged(), [](auto& a) { a.page_table->dtype = DType::kFloat32; }),
              HasSubstr("'page_table': expected dtype int32"));
  EXPECT_THAT(error(paged(), [](auto& a) { a.page_table->shape[0] = 1; }),
              HasSubstr("'page_table': expected shape [2, 3], got [1, 3]"));
  EXPECT_THAT(error(paged(), [](auto& a) { a.page_table->strides[1] = 2; }),
              HasSubstr("'page_table': expected contiguous columns"));
  for (const std::int64_t size : {8, 24}) {
    EXPECT_THAT(error(paged(), [&](auto& a) { a.k.data.shape[1] = size; }),
                HasSubstr("'k': expected a page_size that is a power of two from 16 to 2^30, got " +
                          std::to_string(size)));
  }
}

TEST_F(AttentionErrors, OfWhatIndicesSay) {
  query_offsets_ = {0, 4, 3};
  EXPECT_THAT(error(packed(), [](auto&) {}),
              HasSubstr("'query_offsets': expected entries that begin at 0, do not decrease and do "
                        "not exceed 6 rows, got 3 at [2]"));
  query_offsets_ = {0, 2, 6};
  key_offsets_ = {0, 2, 513};
  EXPECT_THAT(error(packed(), [](auto&) {}), HasSubstr("'key_offsets'"));
  EXPECT_THAT(error(packed(), [](auto&) {}), HasSubstr("got 513 at [2]"));
  key_counts_ = {48, 49};
  EXPECT_THAT(error(paged(), [](auto&) {}),
              HasSubstr("'key_counts': expected entries from 0 to 48, got 49 at [1]"));
  key_counts_ = {48, 17};
  EXPECT_THAT(error(paged(), [](auto&) {}),
              HasSubstr("'page_table': expected entries from 0 to 31, got -7 at [1, 1]"));
  key_counts_ = {257, 0};
  EXPECT_THAT(error(dense(), [&](auto& a) { a.key_counts = ints(key_counts_); }),
              HasSubstr("'key_counts': expected entries from 0 to 256, got 257 at [0]"));
}

TEST_F(AttentionErrors, OfResults) {
  const auto spoiled = [&](auto&& spoil) { return error(dense(), spoil); };
  EXPECT_THAT(spoiled([](auto& a) { a.out.shape[1] = 2; }),
              HasSubstr("'out': expected shape [2, 3, 4, 8], got [2, 2, 4, 8]"));
  EXPECT_THAT(spoiled([](auto& a) { a.out.dtype = DType::kBFloat16; }),
              HasSubstr("'out': expected dtype float16, got bfloat16"));
  EXPECT_THAT(spoiled([](auto& a) { a.out.strides[1] = 0; }),
              HasSubstr("'out': expected elements that do not overlap"));
  EXPECT_THAT(spoiled([](auto& a) { a.out.strides[2] = 7; }),
              HasSubstr("'out': expected elements that do not overlap"));
  EXPECT_THAT(spoiled([&](auto& a) { a.out.data = q_.data(); }),
              HasSubstr("'out': expected memory of its own, apart from 'q'"));
  EXPECT_THAT(spoiled([&](auto& a) { a.out.data = v_.data() + 64; }),
              HasSubstr("'out': expected memory of its own, apart from 'v'"));
  EXPECT_THAT(spoiled([](auto& a) { a.log_sum_exp->shape[0] = 1; }),
              HasSubstr("'log_sum_exp': expected shape [2, 4, 3], got [1, 4, 3]"));
  EXPECT_THAT(error(packed(), [](auto& a) { a.log_sum_exp->shape[1] = 1; }),
              HasSubstr("'log_sum_exp': expected shape [4, 6], got [4, 1]"));
  EXPECT_THAT(spoiled([](auto& a) { a.log_sum_exp->strides[0] = 0; }),
              HasSubstr("'log_sum_exp': expected elements that do not overlap"));
  EXPECT_THAT(spoiled([&](auto& a) { a.log_sum_exp->data = scale_.data() + 1; }),
              HasSubstr("'log_sum_exp': expected memory of its own, apart from 'k.scale'"));
  EXPECT_THAT(spoiled([](auto& a) { a.workspace.shape[0] -= 1; }),
              HasSubstr("'workspace': expected shape"));
  EXPECT_THAT(spoiled([](auto& a) { a.workspace.dtype = DType::kInt32; }),
              HasSubstr("'workspace': expected dtype float32"));
  EXPECT_THAT(spoiled([&](auto& a) { a.log_sum_exp->data = workspace_.data(); }),
              HasSubstr("'workspace': expected memory of its own, apart from 'log_sum_exp'"));
}

TEST_F(AttentionErrors, OfWorkspaceSizes) {
  EXPECT_EQ(attention_workspace_size(1, 32, 128), 32 * 64 * 130);
  EXPECT_EQ(attention_workspace_size(1 << 20, 32, 128), 0);
  EXPECT_EQ(attention_workspace_size(std::int64_t{1} << 48, std::int64_t{1} << 48, 128), 0);
  // With batch_invariant, of so many keys: each part of each row apart, or one place for all.
  EXPECT_EQ(attention_workspace_size(64, 32, 128, 1024), 0);
  EXPECT_EQ(attention_workspace_size(64, 32, 128, 1025), 64 * 32 * 2 * 130);
  EXPECT_EQ(attention_workspace_size(64, 32, 128, 65'536), 64 * 32 * 64 * 130);
  EXPECT_EQ(attention_workspace_size(64, 32, 128, 65'537), 64 * 32 * 132);
  EXPECT_EQ(attention_workspace_size(1 << 20, 32, 128, 8192), (std::int64_t{1} << 25) * 132);
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  EXPECT_EQ(attention_workspace_size(kMost, 1, kMost, kMost), 0);
}

}  // namespace
}  // namespace octofold
