// The launches with which operations of a kernel or two reach the GPU: the dot product, rotary
// embeddings, transposes, conversions and routing. Their parameters are those with which
// tests/cpp/kernels runs the kernels on the host.
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "kernels/cast/config/params.h"
#include "kernels/routing/config/routing.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;
using enum DType;
using Blocks = std::vector<unsigned>;

constexpr std::int64_t kTokens = 2000, kSlots = 6, kExperts = 64, kRows = 900, kCols = 640;

MutableTensorView matrix_at(std::uintptr_t place, DType dtype, std::int64_t rows, std::int64_t cols,
                            std::int64_t padding = 8) {
  return matrix(address(place), dtype, rows, cols, cols + padding, kGpu);
}
MutableTensorView vector_at(std::uintptr_t place, DType dtype, std::int64_t size) {
  return vector(address(place), dtype, size, kGpu);
}

class SmallTest : public FakeGpuTest {
 protected:
  SmallTest() { state().params_bytes = sizeof(void*); }

  // Blocks of the kernels that a call queues: on its stream, each of which may begin before the one
  // ahead of it has ended. The parameters of all begin with what lies at 0x1000.
  Blocks blocks_of(auto&& call) {
    state().launches.clear();
    call(runtime().device(0), Stream{&stream_});
    Blocks blocks;
    for (const fake::Launch& launch : state().launches) {
      EXPECT_EQ(launch.stream, &stream_);
      EXPECT_TRUE(launch.may_overlap);
      EXPECT_EQ(launch.params_as<void*>(), address(0x1000));
      blocks.push_back(launch.blocks);
    }
    return blocks;
  }

  int stream_ = 0;
};

TEST_F(SmallTest, PartsOfADotProductAreAddedByASecondKernel) {
  const auto dot_of = [&](std::int64_t size) {
    return blocks_of([&](Device& device, Stream stream) {
      dot(device,
          {.a = {.data = matrix_at(0x1000, kE4M3, 1, size)},
           .b = {.data = matrix_at(0x2000, kFloat32, 1, size)},
           .out = vector_at(0x3000, kFloat32, 1),
           .workspace = vector_at(0x4000, kFloat32, 3)},
          stream);
    });
  };
  EXPECT_EQ(dot_of(20'000), (Blocks{3, 1}));
  EXPECT_EQ(dot_of(100), Blocks{1});
}

TEST_F(SmallTest, RotaryEmbeddings) {
  // x, [2, 40, 8, 64] with heads before tokens, and rows of cos and sin in wider ones.
  RotaryArguments arguments{
      .x = {address(0x1000), kBFloat16, 4, {2, 40, 8, 64}, {20480, 64, 2560, 1}, kGpu},
      .cos = {address(0x20000), kBFloat16, 3, {1, 40, 64}, {7, 72, 1}, kGpu},
      .sin = {address(0x30000), kBFloat16, 3, {2, 40, 64}, {2880, 72, 1}, kGpu},
      .inverse = true};
  MutableTensorView y{address(0x40000), kBFloat16, 4, {2, 40, 8, 64}, {20480, 512, 64, 1}, kGpu};
  const auto blocks = [&] {
    return blocks_of([&](Device& device, Stream stream) { rotary(device, arguments, y, stream); });
  };
  EXPECT_EQ(blocks(), Blocks{10});  // 8 tokens each
  arguments.inverse = false;
  blocks();
  EXPECT_EQ(compilations_, 1);
  arguments.cos.strides[1] = 68;  // not aligned
  blocks();
  EXPECT_EQ(compilations_, 2);
  arguments.x.shape[2] = y.shape[2] = 0;
  EXPECT_EQ(blocks(), Blocks{});
}

TEST_F(SmallTest, Transposes) {
  const auto blocks = [&](std::int64_t stride) {
    return blocks_of([&](Device& device, Stream stream) {
      transpose(device, matrix(address(0x1000), kE4M3, 3 * 400, 272, stride, kGpu),
                matrix_at(0x3000, kE4M3, 3 * 272, 400, 16), 3, stream);
    });
  };
  EXPECT_EQ(blocks(288), Blocks{3 * 4 * 3});
  blocks(304);
  EXPECT_EQ(compilations_, 1);
  blocks(280);  // not in vectors
  EXPECT_EQ(compilations_, 2);
}

TEST_F(SmallTest, ConversionsGetScalesWhereThereAreSome) {
  state().params_bytes = sizeof(config::ConvertParams);
  ScaledTensorView codes{.data = matrix_at(0x1000, kE4M3, kRows, kCols),
                         .scale = matrix_at(0x3000, kFloat32, kRows, kCols / 128, 0),
                         .granularity = Granularity::kBlock1x128};
  codes.scale.strides = {1, kRows + 4};
  const MutableTensorView out = matrix_at(0x4000, kFloat32, kRows, kCols, 16);
  const auto params = [&](auto&& call) {
    blocks_of(call);
    return state().launches.at(0).params_as<config::ConvertParams>();
  };
  const auto of_codes =
      params([&](Device& device, Stream stream) { dequantize(device, codes, out, stream); });
  EXPECT_EQ(of_codes.x_stride, kCols + 8);
  EXPECT_EQ(of_codes.out, address(0x4000));
  EXPECT_EQ(of_codes.out_stride, kCols + 16);
  EXPECT_EQ(of_codes.rows, kRows);
  EXPECT_EQ(of_codes.cols, kCols);
  EXPECT_EQ(of_codes.scale, address(0x3000));
  EXPECT_EQ(of_codes.scale_row_stride, 1);
  EXPECT_EQ(of_codes.scale_col_stride, kRows + 4);
  const auto of_numbers = params([&](Device& device, Stream stream) {
    convert_dtype(device, matrix_at(0x1000, kBFloat16, kRows, kCols), out, Overflow::kNan, stream);
  });
  EXPECT_EQ(of_numbers.x_stride, kCols + 8);
  EXPECT_EQ(compilations_, 2);
}

TEST_F(SmallTest, TopK) {
  EXPECT_EQ(blocks_of([&](Device& device, Stream stream) {
              top_k(device,
                    {.logits = matrix_at(0x1000, kBFloat16, kTokens, kExperts),
                     .ids = matrix_at(0x3000, kInt32, kTokens, kSlots, 0),
                     .weights = matrix_at(0x4000, kFloat32, kTokens, kSlots)},
                    {.scoring = Scoring::kSigmoid}, stream);
            }),
            Blocks{kTokens / 4});
  EXPECT_EQ(blocks_of([&](Device& device, Stream stream) {
              top_k_gradient(device,
                             {.gradient = matrix_at(0x1000, kFloat32, kTokens, kSlots),
                              .logits = matrix_at(0x2000, kFloat16, kTokens, kExperts),
                              .ids = matrix_at(0x3000, kInt32, kTokens, kSlots),
                              .logits_gradient = matrix_at(0x4000, kFloat16, kTokens, kExperts)},
                             {}, stream);
            }),
            Blocks{kTokens / 4});
}

TEST_F(SmallTest, ASortOfManySlotsTakesTwoKernels) {
  const auto blocks = [&](std::int64_t tokens) {
    return blocks_of([&](Device& device, Stream stream) {
      const std::int64_t slots = tokens * kSlots;
      sort_by_expert(device, matrix_at(0x1000, kInt32, tokens, kSlots), kExperts,
                     {.offsets = vector_at(0x2000, kInt32, kExperts + 1),
                      .sources = vector_at(0x3000, kInt32, slots),
                      .positions = matrix_at(0x4000, kInt32, tokens, kSlots, 0),
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
  CombineArguments arguments{.y = matrix_at(0x1000, kBFloat16, kRows, kCols),
                             .positions = matrix_at(0x2000, kInt32, kTokens, kSlots),
                             .c = matrix_at(0x5000, kFloat32, kTokens, kCols, 16),
                             .out = matrix_at(0x4000, kFloat32, kTokens, kCols)};
  const auto blocks = [&] {
    return blocks_of([&](Device& device, Stream stream) { combine(device, arguments, stream); });
  };
  EXPECT_EQ(blocks(), Blocks{kTokens});
  // Vectors are of four: 8 bytes of y will do.
  arguments.y.strides[0] = kCols + 4;
  blocks();
  EXPECT_EQ(compilations_, 1);
  arguments.y.strides[0] = kCols + 2;
  blocks();
  arguments.y.strides[0] = kCols;
  arguments.c->data = address(0x5004);
  blocks();
  EXPECT_EQ(compilations_, 2);  // one kernel more, element by element
}

TEST_F(SmallTest, GradientsByRoutingWeights) {
  EXPECT_EQ(blocks_of([&](Device& device, Stream stream) {
              combine_gradient(device,
                               {.gradient = matrix_at(0x1000, kFloat16, kTokens, kCols),
                                .y = matrix_at(0x2000, kBFloat16, kRows, kCols),
                                .positions = matrix_at(0x3000, kInt32, kTokens, kSlots),
                                .weights_gradient = matrix_at(0x4000, kFloat32, kTokens, kSlots)},
                               stream);
            }),
            Blocks{kTokens});
  EXPECT_EQ(blocks_of([&](Device& device, Stream stream) {
              activation_dots(device,
                              {.gradient = matrix_at(0x1000, kFloat16, kRows, kCols),
                               .x = matrix_at(0x2000, kFloat16, kRows, 2 * kCols),
                               .positions = matrix_at(0x3000, kInt32, kTokens, kSlots),
                               .dots = matrix_at(0x4000, kFloat32, kTokens, kSlots)},
                              stream);
            }),
            Blocks{kTokens * kSlots / config::ActivationDotsConfig::kSlots});
}

TEST_F(SmallTest, GradientsByBiasesOfExperts) {
  EXPECT_EQ(blocks_of([&](Device& device, Stream stream) {
              expert_sums(device,
                          {.gradient = matrix_at(0x1000, kBFloat16, kTokens, 512),
                           .offsets = vector(address(0x2000), kInt32, 9),
                           .sources = vector(address(0x3000), kInt32, kTokens * kSlots),
                           .weights = matrix_at(0x4000, kFloat32, kTokens, kSlots),
                           .sums = matrix_at(0x5000, kFloat32, 8, 512)},
                          stream);
            }),
            Blocks{16});
}

}  // namespace
}  // namespace octofold::cuda
