#include "cpu/gemm_weight_only.h"

#include "cpu/matrix_product.h"

namespace octofold::cpu {

void gemm_weight_only(const GemmWeightOnlyArguments& arguments) {
  const MatrixProduct product{.a = Operand(arguments.x),
                              .b = Operand(arguments.w),
                              .out = arguments.out,
                              .bias = arguments.bias};
  if (size_of(arguments.x.data.dtype) == 2) return compute<float>(product);
  compute<double>(product);
}

void gemm_weight_only_gradient(const GemmWeightOnlyGradientArguments& arguments) {
  compute<float>({.a = Operand(DotOperand{.data = arguments.gradient}),
                  .b = Operand::columns_of(arguments.w),
                  .out = arguments.out});
}

}  // namespace octofold::cpu
