#include "octofold/gated_gemm.h"

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
void gated_gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView a_scale, tvm::ffi::TensorView b,
                tvm::ffi::TensorView b_scale, tvm::ffi::TensorView out,
                tvm::ffi::TensorView out_scale, tvm::ffi::String a_granularity,
                tvm::ffi::String b_granularity, tvm::ffi::String activation,
                tvm::ffi::Optional<bool> power_of_two, tvm::ffi::String overflow,
                tvm::ffi::String rule, OptionalStream stream, Candidate... candidate) {
  constexpr std::string_view kName = "gated_gemm", kFp8 = "e4m3 or e5m2";
  octofold::gated_gemm(
      {.a = {view_of(kName, "a", a, kFp8), view_of(kName, "a.scale", a_scale, "float32"),
             parse_granularity(view_of(a_granularity))},
       .b = {view_of(kName, "b", b, kFp8), view_of(kName, "b.scale", b_scale, "float32"),
             parse_granularity(view_of(b_granularity))},
       .out = target_of(kName, out, out_scale, format_of(power_of_two, overflow, rule)),
       .activation = parse_activation(view_of(activation))},
      stream_of(stream, out), view_of(candidate)...);
}

tvm::ffi::Array<tvm::ffi::String> gated_gemm_candidates() {
  tvm::ffi::Array<tvm::ffi::String> names;
  for (const std::string& name : octofold::gated_gemm_candidates()) names.push_back(name);
  return names;
}

OCTOFOLD_EXPORT_AS(gated_gemm, gated_gemm<>)
OCTOFOLD_EXPORT_AS(gated_gemm_by_candidate, gated_gemm<tvm::ffi::String>)
OCTOFOLD_EXPORT(gated_gemm_candidates)

}  // namespace octofold::bindings
