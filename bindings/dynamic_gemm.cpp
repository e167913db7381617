#include "octofold/dynamic_gemm.h"

#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "octofold/tuning.h"

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

// `candidate`, where there is one: a name, for tests and tuning.
template <typename... Candidate>
void dynamic_gemm(tvm::ffi::TensorView x, tvm::ffi::TensorView b, tvm::ffi::TensorView b_scale,
                  OptionalTensor bias, tvm::ffi::TensorView out, tvm::ffi::String b_granularity,
                  tvm::ffi::String dtype, tvm::ffi::Optional<bool> power_of_two,
                  tvm::ffi::String overflow, tvm::ffi::String rule, OptionalStream stream,
                  Candidate... candidate) {
  constexpr std::string_view kName = "dynamic_gemm";
  DynamicGemmArguments arguments{
      .x = view_of(kName, "x", x, "float32, float16 or bfloat16"),
      .b = {view_of(kName, "b", b, "e4m3 or e5m2"), view_of(kName, "b.scale", b_scale, "float32"),
            parse_granularity(view_of(b_granularity))},
      .out = view_of(kName, "out", out, "bfloat16, float16 or float32"),
      .format = format_of(power_of_two, overflow, rule)};
  arguments.format.dtype = parse_dtype(view_of(dtype));
  if (bias) arguments.bias = view_of(kName, "bias", *bias, "that of 'out' or float32");
  octofold::dynamic_gemm(arguments, stream_of(stream, out), view_of(candidate)...);
}

tvm::ffi::Array<tvm::ffi::String> dynamic_gemm_candidates() {
  tvm::ffi::Array<tvm::ffi::String> names;
  for (const std::string& name : octofold::dynamic_gemm_candidates()) names.push_back(name);
  return names;
}

OCTOFOLD_EXPORT_AS(dynamic_gemm, dynamic_gemm<>)
OCTOFOLD_EXPORT_AS(dynamic_gemm_by_candidate, dynamic_gemm<tvm::ffi::String>)
OCTOFOLD_EXPORT(dynamic_gemm_candidates)

}  // namespace octofold::bindings
