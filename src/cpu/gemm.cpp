#include "cpu/gemm.h"

#include "cpu/product.h"

namespace octofold::cpu {

void gemm(const GemmArguments& arguments) {
  compute<float>({.a = Operand(arguments.a),
                  .b = Operand(arguments.b),
                  .out = arguments.out,
                  .channel_scale = arguments.b.channel_scale,
                  .c = arguments.c,
                  .bias = arguments.bias});
}

}  // namespace octofold::cpu
