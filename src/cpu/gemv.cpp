#include "cpu/gemv.h"

#include "cpu/matrix_product.h"

namespace octofold::cpu {

void gemv(const GemvArguments& arguments) {
  compute<double>({.a = Operand(arguments.x), .b = Operand(arguments.w), .out = arguments.out});
}

}  // namespace octofold::cpu
