// The launches with which operations of a kernel or two reach the GPU: the dot product, rotary
// embeddings, transposes, conversions, routing, products with FP8 weights and attention; and what
// of their parameters no kernel on the host shows, which tests/cpp/kernels runs by them.
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "cuda/params.h"
#include "kernels/cast/config/params.h"
#include "kernels/routing/config/routing.h"
#include "kernels/weight_only/config/config.h"
#include "support/gpu_product.h"
#include "support/shaped.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address, test::kGpu, test::matrix_at, test::vector_at;
using enum DType;

constexpr std::int64_t kTokens = 2000, kSlots = 6, kExperts = 64, kRows = 900, kCols = 640;

using SmallTest = LaunchTest;

TEST_F(SmallTest, PartsOfADotProductAreAddedByASecondKernel) {
  const auto blocks = [&](std::int64_t size) {
    return blocks_of([&](Device& device, Stream stream) {
      dot(device,
          {.a = {.data = matrix_at(0x1000, kE4M3, 1, size)},
           .b = {.data = matrix_at(0x2000, kFloat32, 1, size)},
           .out = vector_at(0x3000, kFloat32, 1),
           .workspace = vector_at(0x4000, kFloat32, 3)},
          stream);
    });
  };
  EXPECT_EQ(blocks(20'000), (Blocks{3, 1}));
  EXPECT_EQ(blocks(100), Blocks{1});
}

TEST_F(SmallTest, RotaryEmbeddings) {
  // x, [2, 40, 8, 64] with heads before tokens, and rows of cos and sin in wider ones.
  RotaryArguments arguments{
      .x = {address(0x1000), kBFloat16, 4, {2, 40, 8, 64}, {20480, 64, 2560, 1}, kGpu},
      .cos = {address(0x20000), kBFloat16, 3, {1, 40, 64}, {7, 72, 1}, kGpu},
      .sin = {address(0x30000), kBFloat16, 3, {2, 40, 64}, {2880, 72, 1}, kGpu},
      .inverse = true};
  MutableTensorView y{address(0x40000), kBFloat16, 4, {2, 40, 8, 64}, {20480, 512, 64, 1}, kGpu};
  const auto embed = [&](Device& device, Stream stream) { rotary(device, arguments, y, stream); };
  EXPECT_EQ(blocks_of(embed), Blocks{10});  // 8 tokens each
  arguments.inverse = false;
  EXPECT_EQ(compiled_by(embed), 0);
  arguments.cos.strides[1] = 68;  // not aligned
  EXPECT_EQ(compiled_by(embed), 1);
}

TEST_F(SmallTest, Transposes) {
  const auto of_stride = [&](std::int64_t stride) {
    return [=](Device& device, Stream stream) {
      transpose(device, matrix(address(0x1000), kE4M3, 3 * 400, 272, stride, kGpu),
                matrix_at(0x3000, kE4M3, 3 * 272, 400, 16), 3, stream);
    };
  };
  EXPECT_EQ(blocks_of(of_stride(288)), Blocks{3 * 4 * 3});
  EXPECT_EQ(compiled_by(of_stride(304)), 0);
  EXPECT_EQ(compiled_by(of_stride(280)), 1);  // not in vectors
}

TEST_F(SmallTest, ConversionsGetScalesWhereThereAreSome) {
  ScaledTensorView codes{.data = matrix_at(0x1000, kE4M3, kRows, kCols, 8),
                         .scale = matrix_at(0x3000, kFloat32, kRows, kCols / 128),
                         .granularity = Granularity::kBlock1x128};
  codes.scale.strides = {1, kRows + 4};
  const MutableTensorView out = matrix_at(0x4000, kFloat32, kRows, kCols, 16);
  const auto of_codes = params_of_call<config::ConvertParams>(
      [&](Device& device, Stream stream) { dequantize(device, codes, out, stream); });
  EXPECT_EQ(of_codes.x_stride, kCols + 8);
  EXPECT_EQ(of_codes.out, address(0x4000));
  EXPECT_EQ(of_codes.out_stride, kCols + 16);
  EXPECT_EQ(of_codes.rows, kRows);
  EXPECT_EQ(of_codes.cols, kCols);
  EXPECT_EQ(of_codes.scale, address(0x3000));
  EXPECT_EQ(of_codes.scale_row_stride, 1);
  EXPECT_EQ(of_codes.scale_col_stride, kRows + 4);
  const auto of_numbers = params_of_call<config::ConvertParams>([&](Device& device, Stream stream) {
    const TensorView x = matrix_at(0x1000, kBFloat16, kRows, kCols, 8);
    convert_dtype(device, x, out, Overflow::kNan, stream);
  });
  EXPECT_EQ(of_numbers.x_stride, kCols + 8);
  EXPECT_EQ(compilations_, 2);
}

TEST_F(SmallTest, ChoicesOfExpertsAndTheirGradients) {
  const auto choose = [&](Device& device, Stream stream) {
    top_k(device,
          {.logits = matrix_at(0x1000, kBFloat16, kTokens, kExperts, 8),
           .ids = matrix_at(0x3000, kInt32, kTokens, kSlots),
           .weights = matrix_at(0x4000, kFloat32, kTokens, kSlots, 8)},
          {.scoring = Scoring::kSigmoid}, stream);
  };
  const auto back = [&](Device& device, Stream stream) {
    top_k_gradient(device,
                   {.gradient = matrix_at(0x1000, kFloat32, kTokens, kSlots, 8),
                    .logits = matrix_at(0x2000, kFloat16, kTokens, kExperts, 8),
                    .ids = matrix_at(0x3000, kInt32, kTokens, kSlots, 8),
                    .logits_gradient = matrix_at(0x4000, kFloat16, kTokens, kExperts, 8)},
                   {}, stream);
  };
  EXPECT_EQ(blocks_of(choose), Blocks{kTokens / 4});
  EXPECT_EQ(blocks_of(back), Blocks{kTokens / 4});
}

TEST_F(SmallTest, ASortOfManySlotsTakesTwoKernels) {
  const auto blocks = [&](std::int64_t tokens) {
    return blocks_of([&](Device& device, Stream stream) {
      const std::int64_t slots = tokens * kSlots;
      sort_by_expert(device, matrix_at(0x1000, kInt32, tokens, kSlots, 8), kExperts,
                     {.offsets = vector_at(0x2000, kInt32, kExperts + 1),
                      .sources = vector_at(0x3000, kInt32, slots),
                      .positions = matrix_at(0x4000, kInt32, tokens, kSlots),
                      .workspace = vector_at(0x5000, kInt32, sort_workspace_size(slots, kExperts))},
                     stream);
    });
  };
  EXPECT_EQ(blocks(kTokens), (Blocks{6, 6}));  // 12 000 slots, 2048 to a block
  EXPECT_EQ(blocks(64), Blocks{1});
  EXPECT_EQ(blocks(0), Blocks{1});
  EXPECT_EQ(compilations_, 3);
}

TEST_F(SmallTest, CombinationsByVectorsAndByElements) {
  CombineArguments arguments{.y = matrix_at(0x1000, kBFloat16, kRows, kCols, 8),
                             .positions = matrix_at(0x2000, kInt32, kTokens, kSlots, 8),
                             .c = matrix_at(0x5000, kFloat32, kTokens, kCols, 16),
                             .out = matrix_at(0x4000, kFloat32, kTokens, kCols, 8)};
  const auto add = [&](Device& device, Stream stream) { combine(device, arguments, stream); };
  EXPECT_EQ(blocks_of(add), Blocks{kTokens});
  // Vectors are of four: 8 bytes of y will do.
  arguments.y.strides[0] = kCols + 4;
  EXPECT_EQ(compiled_by(add), 0);
  arguments.y.strides[0] = kCols + 2;
  EXPECT_EQ(compiled_by(add), 1);
  arguments.y.strides[0] = kCols;
  arguments.c->data = address(0x5004);
  EXPECT_EQ(compiled_by(add), 0);  // element by element, too
}

TEST_F(SmallTest, GradientsByRoutingWeightsAndBiasesOfExperts) {
  const TensorView positions = matrix_at(0x3000, kInt32, kTokens, kSlots, 8);
  const MutableTensorView results = matrix_at(0x4000, kFloat32, kTokens, kSlots, 8);
  const auto by_weights = [&](Device& device, Stream stream) {
    combine_gradient(device,
                     {.gradient = matrix_at(0x1000, kFloat16, kTokens, kCols, 8),
                      .y = matrix_at(0x2000, kBFloat16, kRows, kCols, 8),
                      .positions = positions,
                      .weights_gradient = results},
                     stream);
  };
  const auto of_activations = [&](Device& device, Stream stream) {
    activation_dots(device,
                    {.gradient = matrix_at(0x1000, kFloat16, kRows, kCols, 8),
                     .x = matrix_at(0x2000, kFloat16, kRows, 2 * kCols, 8),
                     .positions = positions,
                     .dots = results},
                    stream);
  };
  const auto by_biases = [&](Device& device, Stream stream) {
    expert_sums(device,
                {.gradient = matrix_at(0x1000, kBFloat16, kTokens, 512, 8),
                 .offsets = vector(address(0x2000), kInt32, 9),
                 .sources = vector(address(0x3000), kInt32, kTokens * kSlots),
                 .weights = results,
                 .sums = matrix_at(0x5000, kFloat32, 8, 512, 8)},
                stream);
  };
  EXPECT_EQ(blocks_of(by_weights), Blocks{kTokens});
  EXPECT_EQ(blocks_of(of_activations),
            Blocks{kTokens * kSlots / config::ActivationDotsConfig::kSlots});
  EXPECT_EQ(blocks_of(by_biases), Blocks{16});
}

// ---- Products with FP8 weights.

// W [256, depth] by blocks of 1x128, whose scales lie column by column.
ScaledTensorView weights(std::int64_t depth = 512) {
  ScaledTensorView w{.data = matrix_at(0x1000, kE4M3, 256, depth, 640 - depth),
                     .scale = matrix_at(0x5000, kFloat32, 256, (depth + 127) / 128),
                     .granularity = Granularity::kBlock1x128};
  w.scale.strides = {1, 260};
  return w;
}

auto by_weights(const core::WeightOnlyProduct& product) {
  return [=](Device& device, Stream stream) { multiply(device, product, stream); };
}

class WeightOnlyTest : public LaunchTest {
 protected:
  WeightOnlyTest() { state().compute_major = 8; }  // without products of warpgroups
};

// No kernel on the host has codes of x by squares.
TEST_F(WeightOnlyTest, AProductIsOneKernel) {
  const DotOperand x{.data = matrix_at(0x2000, kE5M2, 3, 512, 16),
                     .scale = matrix_at(0x6000, kFloat32, 1, 4),
                     .granularity = Granularity::kBlock128x128};
  const auto params = params_of_call<config::WeightOnlyParams>(
      by_weights({.x = x, .w = weights(), .out = matrix_at(0x3000, kFloat32, 3, 256, 44)}));
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_GT(state().launches[0].shared_bytes, 0u);
  EXPECT_EQ(params.x_scale.data, address(0x6000));
  EXPECT_EQ(params.x_scale.stride, 4);
  EXPECT_EQ(params.x_scale.depth_stride, 1);
  EXPECT_EQ(params.x_scale.shift, 7);
}

TEST_F(WeightOnlyTest, WithAWorkspaceBlocksShareTheDepth) {
  const auto product = by_weights({.x = {matrix_at(0x2000, kBFloat16, 64, 7168)},
                                   .w = {.data = matrix_at(0x1000, kE4M3, 4096, 7168),
                                         .scale = vector_at(0x5000, kFloat32, 4096),
                                         .granularity = Granularity::kChannel},
                                   .out = matrix_at(0x3000, kBFloat16, 64, 4096),
                                   .workspace = vector_at(0x7000, kFloat32, 4 * 64 * 4096)});
  for (const std::size_t launch : {0u, 1u}) {
    const auto params = params_of_call<config::WeightOnlyParams>(product, launch);
    EXPECT_EQ(params.partials, address(0x7000));
    EXPECT_GT(params.splits, 1);
    EXPECT_LE(params.splits, 4);
  }
  EXPECT_EQ(state().launches.size(), 2u);
}

// Hopper has more than 16 rows of 16-bit numbers by TMA.
TEST_F(WeightOnlyTest, HopperHasTensorMaps) {
  state().compute_major = 9;
  first_ = nullptr;
  blocks_of(by_weights({.x = {matrix_at(0x2000, kBFloat16, 100, 512)},
                        .w = weights(),
                        .out = matrix_at(0x3000, kBFloat16, 100, 256, 8)}));
  EXPECT_EQ(state().launches.size(), 1u);
  ASSERT_EQ(state().tensor_maps.size(), 2u);  // of W and x
  EXPECT_EQ(state().tensor_maps[0].address, address(0x1000));
  EXPECT_EQ(state().tensor_maps[1].address, address(0x2000));
}

// Other kernels: memory that vectors cannot access.
TEST_F(WeightOnlyTest, RowsAnywhereHaveKernelsOfTheirOwn) {
  const auto compiled = [&](std::uintptr_t x, std::int64_t x_padding, std::int64_t depth) {
    return compiled_by(by_weights({.x = {matrix_at(x, kBFloat16, 100, depth, x_padding)},
                                   .w = weights(depth),
                                   .out = matrix_at(0x3000, kBFloat16, 100, 256)}));
  };
  EXPECT_EQ(compiled(0x2000, 0, 512), 1);
  EXPECT_EQ(compiled(0x2000, 8, 512), 0);
  EXPECT_EQ(compiled(0x2002, 0, 512), 1);
  EXPECT_EQ(compiled(0x2000, 1, 512), 0);
  EXPECT_EQ(compiled(0x2000, 8, 504), 0);
  EXPECT_EQ(compiled(0x2000, 16, 496), 0);
}

// ---- Attention.

MutableTensorView tensor_at(std::uintptr_t place, DType dtype,
                            const std::vector<std::int64_t>& shape) {
  return test::tensor(address(place), dtype, shape, kGpu);
}

class AttentionTest : public LaunchTest {
 protected:
  void set_queries(std::int64_t queries) {
    given_.q = tensor_at(0x1000, kFloat16, {2, queries, 8, 64});
    given_.out = tensor_at(0x4000, kFloat16, {2, queries, 8, 64});
  }
  AttentionArguments given_{.q = tensor_at(0x1000, kFloat16, {2, 3, 8, 64}),
                            .k = {.data = tensor_at(0x2000, kE4M3, {2, 700, 4, 64})},
                            .v = {.data = tensor_at(0x3000, kE5M2, {2, 700, 4, 64})},
                            .out = tensor_at(0x4000, kFloat16, {2, 3, 8, 64}),
                            .softmax_scale = 0.5f,
                            .workspace = tensor_at(0x5000, kFloat32, {1000})};

  const std::function<void(Device&, Stream)> attend_ = [this](Device& device, Stream stream) {
    attention(device, given_, stream);
  };
};

TEST_F(AttentionTest, SplitsAreCombinedByASecondKernel) {
  const auto params = params_of_call<config::AttentionParams>(attend_);
  EXPECT_GT(params.splits, 1);
  EXPECT_EQ(blocks_of(attend_), (Blocks{8 * static_cast<unsigned>(params.splits), 2 * 3 * 8 / 4}));
  given_.q = tensor_at(0x1000, kFloat16, {10, 8, 64});
  given_.out = tensor_at(0x4000, kFloat16, {10, 8, 64});
  given_.query_offsets = tensor_at(0x6000, kInt32, {3});
  // Tiles of sequences, each not full.
  EXPECT_EQ(params_of_call<config::AttentionParams>(attend_).row_tiles, 10 * 2 / 16 + 2);
  given_.query_offsets.reset();
  set_queries(0);
  EXPECT_EQ(blocks_of(attend_), Blocks{});
}

TEST_F(AttentionTest, WindowsThatNoSequenceFillsAreNone) {
  given_.window_left = std::int64_t{1} << 40;
  given_.window_right = 0;
  const config::AttentionParams params = params_of(given_, {});
  EXPECT_EQ(params.window_left, -1);
  EXPECT_EQ(params.window_right, 0);
}

TEST_F(AttentionTest, KeysOfATableAreAtMostThoseThatCanBeCounted) {
  const auto keys = [&](std::int64_t pages, std::int64_t of_sequence) {
    given_.k.data = tensor_at(0x2000, kE4M3, {pages, 32, 4, 64});
    given_.v.data = tensor_at(0x3000, kE4M3, {pages, 32, 4, 64});
    given_.key_counts = tensor_at(0x6000, kInt32, {2});
    given_.page_table = tensor_at(0x7000, kInt32, {2, of_sequence});
    return params_of(given_, {}).keys;
  };
  EXPECT_EQ(keys(90, 40), 40 * 32);
  // There is room for a tile beyond.
  EXPECT_EQ(keys(90, std::int64_t{1} << 27), std::numeric_limits<int>::max() - 4096);
  EXPECT_EQ(keys(0, 40), 0);  // no pages have no keys
}

TEST_F(AttentionTest, TheStrideOfOneKeyIsOfNoAccount) {
  given_.k.data.shape[1] = given_.v.data.shape[1] = 1;
  given_.k.data.strides[1] = given_.v.data.strides[1] = 1;
  const config::AttentionParams params = params_of(given_, {});
  EXPECT_EQ(params.k.key_stride, 0);
  EXPECT_EQ(params.v.key_stride, 0);
}

TEST_F(AttentionTest, AddressesSayHowMuchIsCopiedAtATime) {
  const auto compiled_of = [&](std::uintptr_t k, std::int64_t head_stride) {
    given_.k.data.data = address(k);
    given_.v.data.strides[2] = head_stride;
    return compiled_by(attend_);
  };
  EXPECT_GT(compiled_of(0x2000, 64), 0);  // 16
  EXPECT_EQ(compiled_of(0x2010, 64), 0);  // 16 too
  EXPECT_EQ(compiled_of(0x2008, 64), 1);  // 8
  EXPECT_EQ(compiled_of(0x2000, 72), 0);  // 8 too
  EXPECT_EQ(compiled_of(0x2004, 72), 1);  // 4
  EXPECT_EQ(compiled_of(0x2001, 64), 1);  // 1
  given_.q.strides[1] += 4;
  given_.out.data = address(0x4002);
  const config::AttentionParams params = params_of(given_, {});
  EXPECT_FALSE(params.q_vectors);
  EXPECT_FALSE(params.out_pairs);
}

// Kernels for few queries have no products of codes.
TEST_F(AttentionTest, ComputeAllowsKernelsWithFp8Scores) {
  for (const auto& [queries, kernels] : {std::pair{3, 0}, {200, 1}}) {
    set_queries(queries);
    given_.compute = AttentionCompute::kExact;
    blocks_of(attend_);
    given_.compute = AttentionCompute::kFp8;
    EXPECT_EQ(compiled_by(attend_), kernels);
  }
}

// A key's value is the first 32 of its 64 numbers: then values take no shared memory of their own.
TEST_F(AttentionTest, ValuesAreReadOnceWhereTheyAreNumbersOfTheKeys) {
  given_.out = tensor_at(0x4000, kFloat16, {2, 3, 8, 32});
  const auto shared_bytes = [&](std::uintptr_t v, DType type, std::int64_t key_stride) {
    given_.v.data = tensor_at(v, type, {2, 700, 4, 64});
    given_.v.data.shape[3] = 32;
    given_.v.data.strides[1] = key_stride;
    blocks_of(attend_);
    return state().launches[0].shared_bytes;
  };
  const unsigned latent = shared_bytes(0x2000, kE4M3, 4 * 64);
  for (const unsigned apart :
       {shared_bytes(0x3000, kE4M3, 4 * 64), shared_bytes(0x2020, kE4M3, 4 * 64),
        shared_bytes(0x2000, kE5M2, 4 * 64), shared_bytes(0x2000, kE4M3, 4 * 80)}) {
    EXPECT_GT(apart, latent);
  }
}

}  // namespace
}  // namespace octofold::cuda
