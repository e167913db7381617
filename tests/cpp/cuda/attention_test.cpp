// The launches and parameters with which an attention reaches the GPU. The results of its kernels
// are tested on a GPU, and on the host in tests/cpp/kernels/attention_test.cpp.
#include "cuda/backend.h"

#include "cuda/fake_runtime.h"
#include "kernels/attention/config/params.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;
using enum DType;

MutableTensorView tensor_at(std::uintptr_t value, DType dtype,
                            const std::vector<std::int64_t>& shape) {
  MutableTensorView tensor{
      .data = address(value), .dtype = dtype, .rank = static_cast<std::int32_t>(shape.size())};
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape[i];
    tensor.strides[i] = stride;
    stride *= shape[i];
  }
  tensor.device = kGpu;
  return tensor;
}

class AttentionTest : public FakeGpuTest {
 protected:
  // Launches of it, and the parameters of the first.
  config::AttentionParams run(const AttentionArguments& arguments) {
    state().params_bytes = sizeof(config::AttentionParams);
    state().launches.clear();
    attention(runtime().device(0), arguments, {&stream_});
    if (state().launches.empty()) return {};
    return state().launches[0].params_as<config::AttentionParams>();
  }

  static AttentionArguments dense() {
    AttentionArguments arguments{.q = tensor_at(0x1000, kFloat16, {2, 3, 8, 64}),
                                 .k = {.data = tensor_at(0x2000, kE4M3, {2, 700, 4, 64})},
                                 .v = {.data = tensor_at(0x3000, kE5M2, {2, 700, 4, 64})},
                                 .out = tensor_at(0x4000, kFloat16, {2, 3, 8, 64}),
                                 .workspace = tensor_at(0x5000, kFloat32, {1000})};
    arguments.softmax_scale = 0.5f;
    return arguments;
  }

  int stream_ = 0;
};

TEST_F(AttentionTest, OfDenseKeys) {
  AttentionArguments arguments = dense();
  arguments.log_sum_exp = tensor_at(0x6000, kFloat32, {2, 8, 3});
  arguments.key_counts = tensor_at(0x7000, kInt32, {2});
  arguments.k.scale = tensor_at(0x8000, kFloat32, {2, 6, 4});
  arguments.v.scale = tensor_at(0x9000, kFloat32, {4});
  arguments.window_right = 0;
  arguments.window_left = std::int64_t{1} << 40;
  const config::AttentionParams params = run(arguments);
  ASSERT_EQ(state().launches.size(), 2u);  // 3 splits of 700 keys, and what combines them
  EXPECT_EQ(state().launches[0].blocks, 2 * 4 * params.splits);
  EXPECT_EQ(state().launches[1].blocks, 2 * 3 * 8 / 4);
  for (const auto& launch : state().launches) EXPECT_EQ(launch.stream, &stream_);
  EXPECT_EQ(params.q, address(0x1000));
  EXPECT_EQ(params.k.data, address(0x2000));
  EXPECT_EQ(params.v.data, address(0x3000));
  EXPECT_EQ(params.out, address(0x4000));
  EXPECT_EQ(params.partials, address(0x5000));
  EXPECT_EQ(params.log_sum_exp, address(0x6000));
  EXPECT_EQ(params.key_counts, address(0x7000));
  EXPECT_EQ(params.query_offsets, nullptr);
  EXPECT_EQ(params.page_table, nullptr);
  EXPECT_EQ(params.q_batch_stride, 3 * 8 * 64);
  EXPECT_EQ(params.q_stride, 8 * 64);
  EXPECT_EQ(params.q_head_stride, 64);
  EXPECT_EQ(params.log_sum_exp_batch_stride, 24);
  EXPECT_EQ(params.log_sum_exp_head_stride, 3);
  EXPECT_EQ(params.log_sum_exp_stride, 1);
  EXPECT_EQ(params.k.outer_stride, 700 * 4 * 64);
  EXPECT_EQ(params.k.key_stride, 4 * 64);
  EXPECT_EQ(params.k.head_stride, 64);
  EXPECT_EQ(params.k.scale, address(0x8000));
  EXPECT_EQ(params.k.scale_outer_stride, 24);
  EXPECT_EQ(params.k.scale_block_stride, 4);
  EXPECT_EQ(params.k.scale_head_stride, 1);
  EXPECT_EQ(params.v.scale_outer_stride, 0);
  EXPECT_EQ(params.v.scale_block_stride, 0);
  EXPECT_EQ(params.v.scale_head_stride, 1);
  EXPECT_EQ(params.batch, 2);
  EXPECT_EQ(params.queries, 3);
  EXPECT_EQ(params.keys, 700);
  EXPECT_EQ(params.heads, 8);
  EXPECT_EQ(params.key_heads, 4);
  EXPECT_EQ(params.group, 2);
  EXPECT_EQ(params.row_tiles, 1);
  EXPECT_EQ(params.window_left, -1);
  EXPECT_EQ(params.window_right, 0);
  EXPECT_FLOAT_EQ(params.scale, 0.5f * 1.44269504f);
  EXPECT_TRUE(params.q_vectors);
  EXPECT_TRUE(params.out_pairs);
}

TEST_F(AttentionTest, OfPackedSequences) {
  AttentionArguments arguments = dense();
  arguments.q = tensor_at(0x1000, kFloat16, {10, 8, 64});
  arguments.out = tensor_at(0x4000, kFloat16, {10, 8, 64});
  arguments.k = {.data = tensor_at(0x2000, kE4M3, {500, 4, 64}),
                 .scale = tensor_at(0x8000, kFloat32, {500 / 128 + 3, 4})};
  arguments.v = {.data = tensor_at(0x3000, kE4M3, {500, 4, 64}),
                 .scale = tensor_at(0x9000, kFloat32, {1})};
  arguments.query_offsets = tensor_at(0x6000, kInt32, {4});
  arguments.key_offsets = tensor_at(0x7000, kInt32, {4});
  const config::AttentionParams params = run(arguments);
  EXPECT_EQ(params.batch, 3);
  EXPECT_EQ(params.queries, 10);
  EXPECT_EQ(params.keys, 500);
  EXPECT_EQ(params.row_tiles, 10 * 2 / 16 + 3);
  EXPECT_EQ(params.q_batch_stride, 0);
  EXPECT_EQ(params.q_stride, 8 * 64);
  EXPECT_EQ(params.k.key_stride, 4 * 64);
  EXPECT_EQ(params.k.head_stride, 64);
  EXPECT_EQ(params.k.scale_block_stride, 4);
  EXPECT_EQ(params.k.scale_outer_stride, 0);
  EXPECT_EQ(params.v.scale, address(0x9000));
  EXPECT_EQ(params.v.scale_head_stride, 0);
  EXPECT_EQ(params.query_offsets, address(0x6000));
  EXPECT_EQ(params.key_offsets, address(0x7000));
}

TEST_F(AttentionTest, OfPages) {
  AttentionArguments arguments = dense();
  arguments.k = {.data = tensor_at(0x2000, kE4M3, {90, 32, 4, 64}),
                 .scale = tensor_at(0x8000, kFloat32, {90, 4})};
  arguments.v = {.data = tensor_at(0x3000, kE4M3, {90, 32, 4, 64})};
  arguments.key_counts = tensor_at(0x6000, kInt32, {2});
  arguments.page_table = tensor_at(0x7000, kInt32, {2, 40});
  const config::AttentionParams params = run(arguments);
  EXPECT_EQ(params.keys, 40 * 32);
  EXPECT_EQ(params.pages, 90);
  EXPECT_EQ(params.page_shift, 5);
  EXPECT_EQ(params.page_table, address(0x7000));
  EXPECT_EQ(params.page_table_stride, 40);
  EXPECT_EQ(params.k.outer_stride, 32 * 4 * 64);
  EXPECT_EQ(params.k.scale_outer_stride, 4);
  EXPECT_EQ(params.k.scale_block_stride, 0);
  EXPECT_EQ(params.v.scale, nullptr);
  // Tables of more keys than counts can say, with room for a tile beyond.
  arguments.page_table = tensor_at(0x7000, kInt32, {2, std::int64_t{1} << 27});
  EXPECT_EQ(run(arguments).keys, std::numeric_limits<int>::max() - 4096);
  // No pages have no keys.
  arguments.k = {.data = tensor_at(0x2000, kE4M3, {0, 32, 4, 64})};
  arguments.v = {.data = tensor_at(0x3000, kE4M3, {0, 32, 4, 64})};
  EXPECT_EQ(run(arguments).keys, 0);
}

TEST_F(AttentionTest, TheStrideOfOneKeyIsOfNoAccount) {
  AttentionArguments arguments = dense();
  arguments.k.data = tensor_at(0x2000, kE4M3, {2, 1, 4, 64});
  arguments.v.data = tensor_at(0x3000, kE4M3, {2, 1, 4, 64});
  arguments.k.data.strides[1] = arguments.v.data.strides[1] = 1;
  const config::AttentionParams params = run(arguments);
  EXPECT_EQ(params.k.key_stride, 0);
  EXPECT_EQ(params.v.key_stride, 0);
}

TEST_F(AttentionTest, AddressesSayHowMuchIsCopiedAtATime) {
  const auto kernels_of = [&](std::uintptr_t k, std::int64_t head_stride) {
    AttentionArguments arguments = dense();
    arguments.k.data.data = address(k);
    arguments.v.data.strides[2] = head_stride;
    run(arguments);
    return compilations_.load();
  };
  const int first = kernels_of(0x2000, 64);      // 16
  EXPECT_EQ(kernels_of(0x2010, 64), first);      // 16 too
  EXPECT_EQ(kernels_of(0x2008, 64), first + 1);  // 8
  EXPECT_EQ(kernels_of(0x2000, 72), first + 1);  // 8 too
  EXPECT_EQ(kernels_of(0x2004, 72), first + 2);  // 4
  EXPECT_EQ(kernels_of(0x2001, 64), first + 3);  // 1
  AttentionArguments arguments = dense();
  arguments.q.strides[1] += 4;
  arguments.out.data = address(0x4002);
  const config::AttentionParams params = run(arguments);
  EXPECT_FALSE(params.q_vectors);
  EXPECT_FALSE(params.out_pairs);
}

// Kernels for few queries have no products of codes.
TEST_F(AttentionTest, ComputeAllowsKernelsWithFp8Scores) {
  const auto kernels_of = [&](std::int64_t queries, AttentionCompute compute) {
    AttentionArguments arguments = dense();
    arguments.q = tensor_at(0x1000, kFloat16, {2, queries, 8, 64});
    arguments.out = tensor_at(0x4000, kFloat16, {2, queries, 8, 64});
    arguments.compute = compute;
    run(arguments);
    return compilations_.load();
  };
  const int few = kernels_of(3, AttentionCompute::kExact);
  EXPECT_EQ(kernels_of(3, AttentionCompute::kFp8), few);
  const int many = kernels_of(200, AttentionCompute::kExact);
  EXPECT_EQ(kernels_of(200, AttentionCompute::kFp8), many + 1);
}

// A key's value is the first 32 of its 64 numbers: then values take no shared memory of their own.
TEST_F(AttentionTest, ValuesAreReadOnceWhereTheyAreNumbersOfTheKeys) {
  const auto shared_bytes = [&](std::uintptr_t v, DType type, std::int64_t key_stride) {
    AttentionArguments arguments = dense();
    arguments.v.data = tensor_at(v, type, {2, 700, 4, 64});
    arguments.v.data.shape[3] = 32;
    arguments.v.data.strides[1] = key_stride;
    arguments.out = tensor_at(0x4000, kFloat16, {2, 3, 8, 32});
    run(arguments);
    return state().launches[0].shared_bytes;
  };
  const unsigned latent = shared_bytes(0x2000, kE4M3, 4 * 64);
  for (const unsigned apart :
       {shared_bytes(0x3000, kE4M3, 4 * 64), shared_bytes(0x2020, kE4M3, 4 * 64),
        shared_bytes(0x2000, kE5M2, 4 * 64), shared_bytes(0x2000, kE4M3, 4 * 80)}) {
    EXPECT_GT(apart, latent);
  }
}

TEST_F(AttentionTest, NothingIsLaunchedForNoQueries) {
  AttentionArguments arguments = dense();
  arguments.q.shape[1] = arguments.out.shape[1] = 0;
  run(arguments);
  EXPECT_TRUE(state().launches.empty());
}

}  // namespace
}  // namespace octofold::cuda
