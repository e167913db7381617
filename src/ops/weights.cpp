#include "ops/weights.h"

#include "core/flatten.h"
#include "core/format.h"
#include "cpu/weight_only.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/scales.h"

namespace octofold::ops {

void check_weights(const core::Arguments& check, const ScaledTensorView& w, Device device,
                   Inputs& inputs) {
  check.require_scaled_input("w", w);
  require_scales(check, "w", plan::kWeights, form_of(w));
  check.require_same_device("w", w.data, device);
  inputs.add("w", w);
}

TensorView checked_halves(const core::Arguments& check, std::string_view argument,
                          const TensorView& given, Inputs& inputs) {
  const TensorView halves = core::flatten(check, argument, given);
  check.require_input_matrix(argument, halves);
  check.require_dtype(argument, halves, {DType::kFloat16, DType::kBFloat16});
  inputs.add(argument, halves);
  return halves;
}

void require_columns_of_gradient(const core::Arguments& check, const TensorView& gradient,
                                 std::int64_t rows) {
  if (gradient.shape[1] == rows) return;
  check.fail("gradient", core::format("N = {} columns, the rows of 'w'", rows),
             core::format("{}", gradient.shape[1]));
}

void run(std::string_view operation, const core::WeightOnlyProduct& product, Stream stream) {
  const Device device = product.out.device;
  if (product.out.element_count() == 0 || !has_memory(device)) return;
  if (!is_on_cpu(device)) {
    return cuda::multiply(gpu(operation, device), product, stream);
  }
  if (!product.candidate.empty()) {
    core::fail_argument(operation, "candidate", "none for tensors on the CPU, which has one kernel",
                        product.candidate);
  }
  cpu::multiply(product);
}

}  // namespace octofold::ops
