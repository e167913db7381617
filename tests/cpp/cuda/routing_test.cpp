// The launches and parameters with which routing reaches the GPU. The results of its kernels are
// tested on a GPU, and on the host in tests/cpp/kernels/routing_test.cpp.
#include "cuda/backend.h"

#include "cuda/fake_runtime.h"
#include "kernels/routing/config/params.h"
#include "kernels/routing/config/routing.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;

constexpr std::int64_t kTokens = 2000, kSlots = 6, kExperts = 64, kRows = 900, kCols = 640;

MutableTensorView matrix_at(std::uintptr_t value, DType dtype, std::int64_t rows, std::int64_t cols,
                            std::int64_t padding = 8) {
  return matrix(address(value), dtype, rows, cols, cols + padding, kGpu);
}
MutableTensorView index_at(std::uintptr_t value, std::int64_t size) {
  return vector(address(value), DType::kInt32, size, kGpu);
}

class RoutingTest : public FakeGpuTest {
 protected:
  template <typename Params>
  Params only_params() {
    EXPECT_EQ(state().launches.size(), 1u);
    EXPECT_EQ(state().launches.at(0).stream, &stream_);
    EXPECT_TRUE(state().launches.at(0).may_overlap);
    return state().launches.at(0).template params_as<Params>();
  }
  Device& device() { return runtime().device(0); }

  int stream_ = 0;
};

TEST_F(RoutingTest, TopKGetsTheArguments) {
  state().params_bytes = sizeof(config::TopKParams);
  const TopKArguments arguments{
      .logits = matrix_at(0x1000, DType::kBFloat16, kTokens, kExperts),
      .bias = vector(static_cast<const void*>(address(0x2000)), DType::kFloat32, kExperts, kGpu),
      .ids = matrix_at(0x3000, DType::kInt32, kTokens, kSlots, 0),
      .weights = matrix_at(0x4000, DType::kFloat32, kTokens, kSlots)};
  top_k(device(), arguments,
        {.scoring = Scoring::kSigmoid,
         .normalize = true,
         .groups = 8,
         .top_groups = 3,
         .scaling_factor = 2.5f},
        {&stream_});
  const auto params = only_params<config::TopKParams>();
  EXPECT_EQ(state().launches[0].blocks, kTokens / 4);
  EXPECT_EQ(params.logits, address(0x1000));
  EXPECT_EQ(params.logits_stride, kExperts + 8);
  EXPECT_EQ(params.bias, address(0x2000));
  EXPECT_EQ(params.tokens, kTokens);
  EXPECT_EQ(params.experts, kExperts);
  EXPECT_EQ(params.slots, kSlots);
  EXPECT_TRUE(params.normalize);
  EXPECT_EQ(params.groups, 8);
  EXPECT_EQ(params.top_groups, 3);
  EXPECT_EQ(params.scale, 2.5f);
  EXPECT_EQ(params.ids, address(0x3000));
  EXPECT_EQ(params.weights, address(0x4000));
  EXPECT_EQ(params.weights_stride, kSlots + 8);
}

TEST_F(RoutingTest, TopKGradientGetsTheArguments) {
  state().params_bytes = sizeof(config::TopKGradientParams);
  top_k_gradient(device(),
                 {.gradient = matrix_at(0x1000, DType::kFloat32, kTokens, kSlots, 1),
                  .logits = matrix_at(0x2000, DType::kFloat16, kTokens, kExperts, 2),
                  .ids = matrix_at(0x3000, DType::kInt32, kTokens, kSlots, 3),
                  .logits_gradient = matrix_at(0x4000, DType::kFloat16, kTokens, kExperts, 4)},
                 {.normalize = true, .scaling_factor = 0.5f}, {&stream_});
  const auto params = only_params<config::TopKGradientParams>();
  EXPECT_EQ(params.gradient, address(0x1000));
  EXPECT_EQ(params.gradient_stride, kSlots + 1);
  EXPECT_EQ(params.logits, address(0x2000));
  EXPECT_EQ(params.logits_stride, kExperts + 2);
  EXPECT_EQ(params.ids, address(0x3000));
  EXPECT_EQ(params.ids_stride, kSlots + 3);
  EXPECT_EQ(params.logits_gradient, address(0x4000));
  EXPECT_EQ(params.logits_gradient_stride, kExperts + 4);
  EXPECT_EQ(params.tokens, kTokens);
  EXPECT_EQ(params.experts, kExperts);
  EXPECT_EQ(params.slots, kSlots);
  EXPECT_TRUE(params.normalize);
  EXPECT_EQ(params.scale, 0.5f);
}

TEST_F(RoutingTest, BothKernelsOfASortGetTheArguments) {
  state().params_bytes = sizeof(config::SortParams);
  const auto sort = [&](std::int64_t tokens) {
    sort_by_expert(device(), matrix_at(0x1000, DType::kInt32, tokens, kSlots), kExperts,
                   {.offsets = index_at(0x2000, kExperts + 1),
                    .sources = index_at(0x3000, tokens * kSlots),
                    .positions = matrix_at(0x4000, DType::kInt32, tokens, kSlots, 0),
                    .workspace = index_at(0x5000, sort_workspace_size(tokens * kSlots, kExperts))},
                   {&stream_});
  };
  sort(kTokens);
  ASSERT_EQ(state().launches.size(), 2u);
  for (const auto& launch : state().launches) {
    EXPECT_EQ(launch.blocks, 6);  // 12 000 slots, 2048 to a block
    const auto params = launch.params_as<config::SortParams>();
    EXPECT_EQ(params.ids, address(0x1000));
    EXPECT_EQ(params.ids_stride, kSlots + 8);
    EXPECT_EQ(params.slots, kTokens * kSlots);
    EXPECT_EQ(params.slots_per_token, kSlots);
    EXPECT_EQ(params.experts, kExperts);
    EXPECT_EQ(params.span, 2048);
    EXPECT_EQ(params.spans, 6);
    EXPECT_EQ(params.histogram, address(0x5000));
    EXPECT_EQ(params.offsets, address(0x2000));
    EXPECT_EQ(params.sources, address(0x3000));
    EXPECT_EQ(params.positions, address(0x4000));
  }
  sort(64);
  sort(0);
  EXPECT_EQ(state().launches.size(), 4u);
  EXPECT_EQ(compilations_, 3);
}

TEST_F(RoutingTest, CombineGetsTheArguments) {
  state().params_bytes = sizeof(config::CombineParams);
  const MutableTensorView out = matrix_at(0x4000, DType::kFloat32, kTokens, kCols);
  CombineArguments arguments{.y = matrix_at(0x1000, DType::kBFloat16, kRows, kCols),
                             .positions = matrix_at(0x2000, DType::kInt32, kTokens, kSlots, 1),
                             .weights = matrix_at(0x3000, DType::kFloat32, kTokens, kSlots, 2),
                             .c = matrix_at(0x5000, DType::kFloat32, kTokens, kCols, 16),
                             .out = out};
  combine(device(), arguments, {&stream_});
  const auto params = only_params<config::CombineParams>();
  EXPECT_EQ(state().launches[0].blocks, kTokens);
  EXPECT_EQ(params.y, address(0x1000));
  EXPECT_EQ(params.y_stride, kCols + 8);
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.positions, address(0x2000));
  EXPECT_EQ(params.positions_stride, kSlots + 1);
  EXPECT_EQ(params.weights, address(0x3000));
  EXPECT_EQ(params.weights_stride, kSlots + 2);
  EXPECT_EQ(params.slots, kSlots);
  EXPECT_EQ(params.c, address(0x5000));
  EXPECT_EQ(params.c_stride, kCols + 16);
  EXPECT_EQ(params.out, address(0x4000));
  EXPECT_EQ(params.out_stride, kCols + 8);
  EXPECT_EQ(params.cols, kCols);

  // Vectors are of four: 8 bytes of y will do.
  arguments.y.data = address(0x1008);
  combine(device(), arguments, {&stream_});
  EXPECT_EQ(compilations_, 1);
  for (TensorView* view : {&arguments.y, &*arguments.c}) {
    const void* before = std::exchange(view->data, address(0x1004));
    combine(device(), arguments, {&stream_});
    view->data = before;
  }
  EXPECT_EQ(compilations_, 2);  // one kernel more, element by element
}

TEST_F(RoutingTest, CombineGradientGetsTheArguments) {
  state().params_bytes = sizeof(config::CombineGradientParams);
  combine_gradient(device(),
                   {.gradient = matrix_at(0x1000, DType::kFloat16, kTokens, kCols),
                    .y = matrix_at(0x2000, DType::kBFloat16, kRows, kCols, 16),
                    .positions = matrix_at(0x3000, DType::kInt32, kTokens, kSlots, 1),
                    .weights_gradient = matrix_at(0x4000, DType::kFloat32, kTokens, kSlots, 2)},
                   {&stream_});
  const auto params = only_params<config::CombineGradientParams>();
  EXPECT_EQ(state().launches[0].blocks, kTokens);
  EXPECT_EQ(params.gradient, address(0x1000));
  EXPECT_EQ(params.gradient_stride, kCols + 8);
  EXPECT_EQ(params.y, address(0x2000));
  EXPECT_EQ(params.y_stride, kCols + 16);
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.positions, address(0x3000));
  EXPECT_EQ(params.positions_stride, kSlots + 1);
  EXPECT_EQ(params.slots, kSlots);
  EXPECT_EQ(params.cols, kCols);
  EXPECT_EQ(params.weights_gradient, address(0x4000));
  EXPECT_EQ(params.weights_gradient_stride, kSlots + 2);
}

TEST_F(RoutingTest, ActivationDotsGetTheArguments) {
  state().params_bytes = sizeof(config::ActivationDotsParams);
  activation_dots(device(),
                  {.gradient = matrix_at(0x1000, DType::kFloat16, kRows, kCols),
                   .x = matrix_at(0x2000, DType::kFloat16, kRows, 2 * kCols, 16),
                   .positions = matrix_at(0x3000, DType::kInt32, kTokens, kSlots, 1),
                   .dots = matrix_at(0x4000, DType::kFloat32, kTokens, kSlots, 2)},
                  {&stream_});
  const auto params = only_params<config::ActivationDotsParams>();
  EXPECT_EQ(
      state().launches[0].blocks,
      config::ceil_divide(kTokens * kSlots, std::int64_t{config::ActivationDotsConfig::kSlots}));
  EXPECT_EQ(params.gradient, address(0x1000));
  EXPECT_EQ(params.gradient_stride, kCols + 8);
  EXPECT_EQ(params.x, address(0x2000));
  EXPECT_EQ(params.x_stride, 2 * kCols + 16);
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.cols, kCols);
  EXPECT_EQ(params.positions, address(0x3000));
  EXPECT_EQ(params.positions_stride, kSlots + 1);
  EXPECT_EQ(params.tokens, kTokens);
  EXPECT_EQ(params.slots, kSlots);
  EXPECT_EQ(params.dots, address(0x4000));
  EXPECT_EQ(params.dots_stride, kSlots + 2);
}

}  // namespace
}  // namespace octofold::cuda
