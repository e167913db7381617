// Tensors without memory: an operation checks its arguments, and looks at nothing.
#include "octofold/octofold.h"

#include "support/shaped.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;

constexpr Device kNone{DeviceType::kNone, 0};

// Row-major, at an address that nothing may be read from, far away from all others.
MutableTensorView view(DType dtype, const std::vector<std::int64_t>& shape) {
  static std::uintptr_t address = 0;
  address += std::uintptr_t{1} << 40;
  return test::tensor(reinterpret_cast<void*>(address), dtype, shape, kNone);
}

ScaledTensorView codes(std::int64_t rows, std::int64_t cols) {
  return {view(DType::kE4M3, {rows, cols}), view(DType::kFloat32, {rows}), Granularity::kChannel};
}

TEST(NoMemoryTest, OperationsReturn) {
  const auto wide = [](std::initializer_list<std::int64_t> shape) {
    return view(DType::kBFloat16, shape);
  };
  gemm({.a = codes(5, 300), .b = codes(200, 300), .out = wide({5, 200})});
  gemm_weight_only({.x = {wide({5, 300})}, .w = codes(200, 300), .out = wide({5, 200})});
  gemm_weight_only_gradient(
      {.gradient = wide({5, 200}), .w = codes(200, 300), .out = wide({5, 300})});
  dequantize(codes(5, 300), wide({5, 300}));
  convert_dtype(wide({5, 300}), view(DType::kFloat32, {5, 300}), Overflow::kNan);
  transpose(view(DType::kE4M3, {3, 5, 300}), view(DType::kE4M3, {3, 300, 5}));
  cast(TensorView(wide({5, 300})), {.rows = CastTarget{view(DType::kE4M3, {5, 300}),
                                                       view(DType::kFloat32, {5}),
                                                       {.granularity = Granularity::kChannel}}});
}

TEST(NoMemoryTest, NumbersOfGroupsAreNotRead) {
  const TensorView stack = view(DType::kE4M3, {3, 200, 300});
  grouped_gemm({.a = codes(5, 300),
                .b = {stack, view(DType::kFloat32, {3, 200}), Granularity::kChannel},
                .groups = RowGroups{view(DType::kInt32, {4})},
                .out = view(DType::kBFloat16, {5, 200})});
  sort_by_expert(view(DType::kInt32, {5, 2}), 8,
                 {.offsets = view(DType::kInt32, {9}),
                  .sources = view(DType::kInt32, {10}),
                  .positions = view(DType::kInt32, {5, 2}),
                  .workspace = view(DType::kInt32, {sort_workspace_size(10, 8)})});
}

TEST(NoMemoryTest, ArgumentsAreChecked) {
  EXPECT_THAT(
      error_of([] {
        gemm({.a = codes(5, 300), .b = codes(200, 299), .out = view(DType::kBFloat16, {5, 200})});
      }),
      HasSubstr("gemm: argument 'b': expected K = 300 columns as in 'a', got 299"));
  EXPECT_THAT(error_of([] {
                TensorView bias = view(DType::kFloat32, {200});
                bias.device = {};
                gemm({.a = codes(5, 300),
                      .b = codes(200, 300),
                      .out = view(DType::kBFloat16, {5, 200}),
                      .bias = bias});
              }),
              HasSubstr("argument 'bias': expected a tensor on no device, got one on cpu"));
}

TEST(NoMemoryTest, NothingIsAllocated) {
  EXPECT_THAT(error_of([] { ScaledMatrix(5, 300, {}, kNone); }),
              HasSubstr("ScaledMatrix: argument 'device': expected one with memory"));
}

}  // namespace
}  // namespace octofold
