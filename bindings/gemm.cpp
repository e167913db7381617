#include "octofold/gemm.h"

#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include "octofold/tuning.h"

#include "error.h"
#include "problem.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

// Inputs come first, then what is written, then options, then the stream: in all of these
// functions. `candidate`, where there is one: a name, for tests and tuning.
template <typename... Candidate>
void gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView a_scale, tvm::ffi::TensorView b,
          tvm::ffi::TensorView b_scale, OptionalTensor c, OptionalTensor bias,
          OptionalTensor b_channel_scale, tvm::ffi::TensorView out, tvm::ffi::String a_granularity,
          tvm::ffi::String b_granularity, bool fast_accumulation, OptionalStream stream,
          Candidate... candidate) {
  GemmArguments arguments{
      .a = {view_of("gemm", "a", a, "e4m3 or e5m2"), view_of("gemm", "a.scale", a_scale, "float32"),
            parse_granularity(view_of(a_granularity))},
      .b = {view_of("gemm", "b", b, "e4m3 or e5m2"), view_of("gemm", "b.scale", b_scale, "float32"),
            parse_granularity(view_of(b_granularity))},
      .out = view_of("gemm", "out", out, "bfloat16, float16 or float32"),
      .fast_accumulation = fast_accumulation};
  if (b_channel_scale) {
    arguments.b.channel_scale = view_of("gemm", "b.channel_scale", *b_channel_scale, "float32");
  }
  if (c) arguments.c = view_of("gemm", "c", *c, "that of 'out' or float32");
  if (bias) arguments.bias = view_of("gemm", "bias", *bias, "that of 'out' or float32");
  octofold::gemm(arguments, stream_of(stream, out), view_of(candidate)...);
}

tvm::ffi::Array<tvm::ffi::String> gemm_candidates(Fields problem, bool operands_fit_tma,
                                                  bool output_fits_tma, bool c_fits_tma) {
  tvm::ffi::Array<tvm::ffi::String> names;
  for (const std::string& name : octofold::gemm_candidates(problem_of(problem), operands_fit_tma,
                                                           output_fits_tma, c_fits_tma)) {
    names.push_back(name);
  }
  return names;
}

tvm::ffi::String planned_gemm_candidate(Fields problem, int64_t multiprocessors) {
  return octofold::planned_gemm_candidate(problem_of(problem),
                                          static_cast<std::int32_t>(multiprocessors));
}

tvm::ffi::String tuning_key(Fields problem) { return octofold::tuning_key(problem_of(problem)); }

// As tuning.py has it.
Fields tuning_table(tvm::ffi::String gpu, int64_t compute_major, int64_t compute_minor,
                    int64_t multiprocessors) {
  GpuInfo info;
  info.name = view_of(gpu);
  info.compute_major = static_cast<std::int32_t>(compute_major);
  info.compute_minor = static_cast<std::int32_t>(compute_minor);
  info.multiprocessors = static_cast<std::int32_t>(multiprocessors);
  const TuningTable table = octofold::tuning_table(info);
  return {{"file", tvm::ffi::String(table.file.string())},
          {"fault", tvm::ffi::String(table.fault)},
          {"products", table.products},
          {"shipped", table.shipped}};
}

OCTOFOLD_EXPORT_AS(gemm, gemm<>)
OCTOFOLD_EXPORT_AS(gemm_by_candidate, gemm<tvm::ffi::String>)
OCTOFOLD_EXPORT(gemm_candidates)
OCTOFOLD_EXPORT(planned_gemm_candidate)
OCTOFOLD_EXPORT(tuning_key)
OCTOFOLD_EXPORT(tuning_table)

}  // namespace octofold::bindings
