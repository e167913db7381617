// The launches with which an attention reaches the GPU, and what of its parameters no kernel on the
// host shows. The results of its kernels are tested on a GPU, and with the same parameters on the
// host in tests/cpp/kernels/attention_test.cpp.
#include "cuda/fake_runtime.h"
#include "cuda/params.h"
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

AttentionArguments dense() {
  AttentionArguments arguments{.q = tensor_at(0x1000, kFloat16, {2, 3, 8, 64}),
                               .k = {.data = tensor_at(0x2000, kE4M3, {2, 700, 4, 64})},
                               .v = {.data = tensor_at(0x3000, kE5M2, {2, 700, 4, 64})},
                               .out = tensor_at(0x4000, kFloat16, {2, 3, 8, 64}),
                               .workspace = tensor_at(0x5000, kFloat32, {1000})};
  arguments.softmax_scale = 0.5f;
  return arguments;
}

class AttentionTest : public FakeGpuTest {
 protected:
  // Returns the parameters of its first launch.
  config::AttentionParams run(const AttentionArguments& arguments) {
    state().params_bytes = sizeof(config::AttentionParams);
    state().launches.clear();
    attention(runtime().device(0), arguments, {&stream_});
    if (state().launches.empty()) return {};
    return state().launches[0].params_as<config::AttentionParams>();
  }

  int stream_ = 0;
};

TEST_F(AttentionTest, SplitsAreCombinedByASecondKernel) {
  const config::AttentionParams params = run(dense());
  ASSERT_EQ(state().launches.size(), 2u);  // 3 splits of 700 keys, and what combines them
  EXPECT_EQ(params.q, address(0x1000));
  EXPECT_EQ(params.row_tiles, 1);
  EXPECT_EQ(state().launches[0].blocks, 2 * 4 * params.splits);
  EXPECT_EQ(state().launches[1].blocks, 2 * 3 * 8 / 4);
  for (const auto& launch : state().launches) EXPECT_EQ(launch.stream, &stream_);
}

TEST_F(AttentionTest, PackedSequencesHaveATileEachThatMayNotBeFull) {
  AttentionArguments arguments = dense();
  arguments.q = tensor_at(0x1000, kFloat16, {10, 8, 64});
  arguments.out = tensor_at(0x4000, kFloat16, {10, 8, 64});
  arguments.query_offsets = tensor_at(0x6000, kInt32, {3});
  EXPECT_EQ(run(arguments).row_tiles, 10 * 2 / 16 + 2);
}

TEST(AttentionParamsTest, WindowsThatNoSequenceFillsAreNone) {
  AttentionArguments arguments = dense();
  arguments.window_left = std::int64_t{1} << 40;
  arguments.window_right = 0;
  const config::AttentionParams params = params_of(arguments, {});
  EXPECT_EQ(params.window_left, -1);
  EXPECT_EQ(params.window_right, 0);
}

TEST(AttentionParamsTest, KeysOfATableAreAtMostThoseThatCanBeCounted) {
  AttentionArguments arguments = dense();
  const auto keys = [&](std::int64_t pages, std::int64_t of_sequence) {
    arguments.k = {.data = tensor_at(0x2000, kE4M3, {pages, 32, 4, 64})};
    arguments.v = {.data = tensor_at(0x3000, kE4M3, {pages, 32, 4, 64})};
    arguments.key_counts = tensor_at(0x6000, kInt32, {2});
    arguments.page_table = tensor_at(0x7000, kInt32, {2, of_sequence});
    return params_of(arguments, {}).keys;
  };
  EXPECT_EQ(keys(90, 40), 40 * 32);
  // There is room for a tile beyond.
  EXPECT_EQ(keys(90, std::int64_t{1} << 27), std::numeric_limits<int>::max() - 4096);
  EXPECT_EQ(keys(0, 40), 0);  // no pages have no keys
}

TEST(AttentionParamsTest, TheStrideOfOneKeyIsOfNoAccount) {
  AttentionArguments arguments = dense();
  arguments.k.data = tensor_at(0x2000, kE4M3, {2, 1, 4, 64});
  arguments.v.data = tensor_at(0x3000, kE4M3, {2, 1, 4, 64});
  arguments.k.data.strides[1] = arguments.v.data.strides[1] = 1;
  const config::AttentionParams params = params_of(arguments, {});
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
  const config::AttentionParams params = params_of(arguments, {});
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
