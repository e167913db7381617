// Calls that attention refuses, and what it says of them.
#include "octofold/attention.h"
#include "octofold/octofold.h"

#include "support/refusals.h"
#include "support/shaped.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::shaped, test::tensor;

class AttentionErrors : public testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 2, kQueries = 3, kHeads = 4, kKvHeads = 2, kKeys = 256,
                                kSize = 8, kPages = 32, kPageSize = 16;

  AttentionArguments dense() {
    return {
        .q = tensor(q_.data(), DType::kFloat16, {kBatch, kQueries, kHeads, kSize}),
        .k = {.data = codes(k_, {kBatch, kKeys, kKvHeads, kSize}), .scale = floats(scale_, {2})},
        .v = {.data = codes(v_, {kBatch, kKeys, kKvHeads, kSize})},
        .out = tensor(out_.data(), DType::kFloat16, {kBatch, kQueries, kHeads, kSize}),
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

  static auto refused(const AttentionArguments& given) {
    return test::refused([](const auto& call) { attention(call); }, given);
  }

  static TensorView codes(const std::vector<std::uint8_t>& memory,
                          const std::vector<std::int64_t>& shape) {
    return tensor(memory.data(), DType::kE4M3, shape);
  }
  static MutableTensorView floats(std::vector<float>& memory,
                                  const std::vector<std::int64_t>& shape) {
    return tensor(memory.data(), DType::kFloat32, shape);
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
  auto given = packed();
  given.log_sum_exp.reset();
  given.key_offsets.reset();
  given.k.data = shaped(given.k.data, {kBatch, kKeys, kKvHeads, kSize});
  given.v.data = given.k.data;
  EXPECT_EQ(error(given, [](auto&) {}), "no error");
  const auto of_scales = [&](const AttentionArguments& call, std::vector<std::int64_t> shape) {
    return error(call, [&](auto& a) { a.v.scale = floats(scale_, shape); });
  };
  EXPECT_EQ(of_scales(dense(), {}), "no error");
  EXPECT_EQ(of_scales(dense(), {2, 2, 2}), "no error");
  EXPECT_EQ(of_scales(packed(), {6, 2}), "no error");
  EXPECT_EQ(of_scales(paged(), {32, 2}), "no error");
}

TEST_F(AttentionErrors, OfBatches) {
  test::Refusals<AttentionArguments> refusals{
      {[](auto& a) { a.q.rank = 3; },
       "attention: argument 'q': expected [batch, queries, heads, head_size], got float16 "
       "[2, 3, 4]"},
      {[](auto& a) { a.q.dtype = DType::kFloat32; },
       "'q': expected dtype float16 or bfloat16, got float32"},
      {[](auto& a) { a.q.shape[3] = 12; },
       "'q': expected a head_size that is a multiple of 8 from 8 to 576, got 12"},
      {[](auto& a) { a.q.strides[3] = 2; }, "'q': expected a contiguous last dimension"},
      {[](auto& a) { a.q.data = nullptr; }, "'q': expected data"},
      {[](auto& a) { a.softmax_scale = std::numeric_limits<float>::infinity(); },
       "'softmax_scale': expected a finite number, got inf"},
      {[](auto& a) { a.compute = static_cast<AttentionCompute>(2); },
       "attention: argument 'compute': expected an AttentionCompute, got 2"},
      {[](auto& a) { a.k.data.rank = 3; },
       "'k': expected [batch, keys, kv_heads, head_size], got e4m3 [2, 256, 2]"},
      {[](auto& a) { a.k.data.shape[3] = 16; }, "'k': expected head_size = 8, as 'q' has, got 16"},
      {[](auto& a) { a.k.data.shape[2] = 3; },
       "'k': expected kv_heads that divide the 4 heads of 'q', got 3"},
      {[](auto& a) { a.k.data.shape[2] = 0; }, "'k': expected kv_heads"},
      {[](auto& a) { a.k.data.shape[0] = 1; },
       "'k': expected batch = 2, as the queries have, got 1"},
      {[](auto& a) { a.k.data.dtype = DType::kFloat16; },
       "'k': expected dtype e4m3 or e5m2, got float16"},
      {[](auto& a) { a.v.data.shape[1] = 5; },
       "'v': expected [2, 256, 2, value_size], as 'k' has, got e4m3 [2, 5, 2, 8]"},
      {[](auto& a) { a.v.data.rank = 3; }, "'v': expected [2, 256, 2, "},
      {[](auto& a) { a.v.data.shape[3] = 16; },
       "'out': expected shape [2, 3, 4, 16], got [2, 3, 4, 8]"},
      {[](auto& a) { a.v.data.strides[3] = 2; }, "'v': expected a contiguous last dimension"},
      {[](auto& a) { a.v.data.device = {DeviceType::kCuda, 0}; },
       "'v': expected a tensor on cpu, got one on cuda:0"},
      {[&](auto& a) { a.v.scale = floats(scale_, {3}); },
       "'v.scale': expected one element, shape [2] or shape [2, 2, 2], got float32 [3]"},
      {[](auto& a) { a.k.scale->dtype = DType::kFloat16; }, "'k.scale': expected dtype float32"},
      {[](auto& a) { a.k.scale->data = nullptr; }, "'k.scale': expected data"},
      {[](auto& a) { a.k.scale->device = {DeviceType::kCuda, 0}; },
       "'k.scale': expected a tensor on cpu"},
      {[&](auto& a) { a.key_counts = ints(key_counts_ = {257, 0}); },
       "'key_counts': expected entries from 0 to 256, got 257 at [0]"},
      {[](auto& a) { a.out.shape[1] = 2; }, "'out': expected shape [2, 3, 4, 8], got [2, 2, 4, 8]"},
      {[](auto& a) { a.out.dtype = DType::kBFloat16; },
       "'out': expected dtype float16, got bfloat16"},
      {[](auto& a) { a.out.strides[1] = 0; }, "'out': expected elements that do not overlap"},
      {[](auto& a) { a.out.strides[2] = 7; }, "'out': expected elements that do not overlap"},
      {[&](auto& a) { a.out.data = q_.data(); },
       "'out': expected memory of its own, apart from 'q'"},
      {[&](auto& a) { a.out.data = v_.data() + 64; },
       "'out': expected memory of its own, apart from 'v'"},
      {[](auto& a) { a.log_sum_exp->shape[0] = 1; },
       "'log_sum_exp': expected shape [2, 4, 3], got [1, 4, 3]"},
      {[](auto& a) { a.log_sum_exp->strides[0] = 0; },
       "'log_sum_exp': expected elements that do not overlap"},
      {[&](auto& a) { a.log_sum_exp->data = scale_.data() + 1; },
       "'log_sum_exp': expected memory of its own, apart from 'k.scale'"},
      {[](auto& a) { a.workspace.shape[0] -= 1; }, "'workspace': expected shape"},
      {[](auto& a) { a.workspace.dtype = DType::kInt32; }, "'workspace': expected dtype float32"},
      {[&](auto& a) { a.log_sum_exp->data = workspace_.data(); },
       "'workspace': expected memory of its own, apart from 'log_sum_exp'"},
  };
  for (const std::int64_t size : {12, 0, 520}) {
    refusals.push_back({[=](auto& a) { a.v.data.shape[3] = size; },
                        "'v': expected a value_size that is a multiple of 8 from 8 to 512, got " +
                            std::to_string(size)});
  }
  refused(dense())(refusals);
}

TEST_F(AttentionErrors, OfPackedRows) {
  refused(packed())({
      {[](auto& a) { a.q.rank = 2; },
       "'q': expected [total_queries, heads, head_size] with 'query_offsets'"},
      {[](auto& a) { a.query_offsets->dtype = DType::kFloat32; },
       "'query_offsets': expected dtype int32"},
      {[](auto& a) { a.query_offsets->shape[0] = 1; }, "'query_offsets'"},
      {[](auto& a) { a.k.data.rank = 2; },
       "'k': expected [total_keys, kv_heads, head_size] with 'key_offsets'"},
      {[&](auto& a) { a.v.scale = floats(scale_, {4, 2}); }, "shape [2] or shape [6, 2], got"},
      {[](auto& a) {
         a.query_offsets.reset();
         a.q = shaped(a.q, {kBatch, kQueries, kHeads, kSize});
       },
       "'key_offsets': expected it to be omitted without 'query_offsets', got one"},
      {[&](auto& a) { a.key_counts = ints(key_counts_); },
       "'key_counts': expected it to be omitted beside 'key_offsets', got one"},
      {[&](auto& a) { a.page_table = paged().page_table; },
       "'page_table': expected it to be omitted beside 'key_offsets', got one"},
      {[](auto& a) { a.key_offsets->shape[0] = 2; }, "'key_offsets': expected shape [3], got [2]"},
      {[](auto& a) { a.log_sum_exp->shape[1] = 1; },
       "'log_sum_exp': expected shape [4, 6], got [4, 1]"},
      {[&](auto&) { query_offsets_ = {0, 4, 3}; },
       "'query_offsets': expected entries that begin at 0, do not decrease and do not exceed 6 "
       "rows, got 3 at [2]"},
      {[&](auto&) { (query_offsets_ = {0, 2, 6}), key_offsets_ = {0, 2, 513}; },
       "'key_offsets': expected entries that begin at 0, do not decrease and do not exceed 512 "
       "rows, got 513 at [2]"},
  });
}

TEST_F(AttentionErrors, OfPages) {
  test::Refusals<AttentionArguments> refusals{
      {[&](auto& a) { a.v.scale = floats(scale_, {6, 2}); }, "shape [2] or shape [32, 2], got"},
      {[](auto& a) { a.key_counts.reset(); },
       "'key_counts': expected one beside 'page_table', got none"},
      {[](auto& a) { a.key_counts->shape[0] = 1; }, "'key_counts': expected shape [2], got [1]"},
      {[](auto& a) { a.key_counts->strides[0] = 2; }, "'key_counts': expected a contiguous vector"},
      {[](auto& a) { a.key_counts->dtype = DType::kFloat32; },
       "'key_counts': expected dtype int32"},
      {[](auto& a) { a.page_table->dtype = DType::kFloat32; },
       "'page_table': expected dtype int32"},
      {[](auto& a) { a.page_table->shape[0] = 1; },
       "'page_table': expected shape [2, 3], got [1, 3]"},
      {[](auto& a) { a.page_table->strides[1] = 2; }, "'page_table': expected contiguous columns"},
      {[&](auto&) { key_counts_ = {48, 49}; },
       "'key_counts': expected entries from 0 to 48, got 49 at [1]"},
      {[&](auto&) { key_counts_ = {48, 17}; },
       "'page_table': expected entries from 0 to 31, got -7 at [1, 1]"},
  };
  for (const std::int64_t size : {8, 24}) {
    refusals.push_back({[=](auto& a) { a.k.data.shape[1] = size; },
                        "'k': expected a page_size that is a power of two from 16 to 2^30, got " +
                            std::to_string(size)});
  }
  refused(paged())(refusals);
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
