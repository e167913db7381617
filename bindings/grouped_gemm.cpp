#include "octofold/grouped_gemm.h"

#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "octofold/tuning.h"

#include "cast_arguments.h"
#include "error.h"
#include "problem.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {
namespace {

using Tensor = tvm::ffi::TensorView;
using tvm::ffi::String;

constexpr std::string_view kFp8 = "e4m3 or e5m2", kWide = "bfloat16, float16 or float32";

ScaledTensorView operand(std::string_view operation, const std::string& argument,
                         const Tensor& codes, const Tensor& scale, const String& granularity) {
  return {view_of(operation, argument, codes, kFp8),
          view_of(operation, argument + ".scale", scale, "float32"),
          parse_granularity(view_of(granularity))};
}

std::optional<TensorView> addend(std::string_view operation, std::string_view argument,
                                 const OptionalTensor& tensor) {
  if (!tensor) return std::nullopt;
  return view_of(operation, argument, *tensor, "that of 'out' or float32");
}

}  // namespace

// `candidate`, where there is one: a name, for tests and tuning.
template <typename... Candidate>
void grouped_gemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor offsets,
                  OptionalTensor c, OptionalTensor bias, Tensor out, String a_granularity,
                  String b_granularity, bool fast_accumulation, OptionalStream stream,
                  Candidate... candidate) {
  constexpr std::string_view kName = "grouped_gemm";
  octofold::grouped_gemm({.a = operand(kName, "a", a, a_scale, a_granularity),
                          .b = operand(kName, "b", b, b_scale, b_granularity),
                          .offsets = view_of(kName, "offsets", offsets, "int32"),
                          .out = view_of(kName, "out", out, kWide),
                          .c = addend(kName, "c", c),
                          .bias = addend(kName, "bias", bias),
                          .fast_accumulation = fast_accumulation},
                         stream_of(stream, out), view_of(candidate)...);
}

template <typename... Candidate>
void masked_gemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor counts,
                 OptionalTensor bias, Tensor out, String a_granularity, String b_granularity,
                 bool fast_accumulation, tvm::ffi::Optional<std::int64_t> expected_rows,
                 OptionalStream stream, Candidate... candidate) {
  constexpr std::string_view kName = "masked_gemm";
  MaskedGemmArguments arguments{.a = operand(kName, "a", a, a_scale, a_granularity),
                                .b = operand(kName, "b", b, b_scale, b_granularity),
                                .counts = view_of(kName, "counts", counts, "int32"),
                                .out = view_of(kName, "out", out, kWide),
                                .bias = addend(kName, "bias", bias),
                                .fast_accumulation = fast_accumulation};
  if (expected_rows.has_value()) arguments.expected_rows = *expected_rows;
  octofold::masked_gemm(arguments, stream_of(stream, out), view_of(candidate)...);
}

template <typename... Candidate>
void grouped_gemm_k(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor offsets,
                    OptionalTensor c, Tensor out, String a_granularity, String b_granularity,
                    bool fast_accumulation, OptionalStream stream, Candidate... candidate) {
  constexpr std::string_view kName = "grouped_gemm_k";
  octofold::grouped_gemm_k({.a = operand(kName, "a", a, a_scale, a_granularity),
                            .b = operand(kName, "b", b, b_scale, b_granularity),
                            .offsets = view_of(kName, "offsets", offsets, "int32"),
                            .out = view_of(kName, "out", out, kWide),
                            .c = addend(kName, "c", c),
                            .fast_accumulation = fast_accumulation},
                           stream_of(stream, out), view_of(candidate)...);
}

template <typename... Candidate>
void grouped_gated_gemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor offsets,
                        Tensor out, Tensor out_scale, String a_granularity, String b_granularity,
                        String activation, tvm::ffi::Optional<bool> power_of_two, String overflow,
                        String rule, OptionalStream stream, Candidate... candidate) {
  constexpr std::string_view kName = "grouped_gated_gemm";
  octofold::grouped_gated_gemm(
      {.a = operand(kName, "a", a, a_scale, a_granularity),
       .b = operand(kName, "b", b, b_scale, b_granularity),
       .offsets = view_of(kName, "offsets", offsets, "int32"),
       .out = target_of(kName, out, out_scale, format_of(power_of_two, overflow, rule)),
       .activation = parse_activation(view_of(activation))},
      stream_of(stream, out), view_of(candidate)...);
}

// `form`: of a GemmForm, by names, as the cache has it.
tvm::ffi::Array<String> grouped_gemm_candidates(Fields form, bool groups_depth) {
  tvm::ffi::Array<String> names;
  for (const std::string& name :
       octofold::grouped_gemm_candidates(problem_of(form).form, groups_depth)) {
    names.push_back(name);
  }
  return names;
}

OCTOFOLD_EXPORT_AS(grouped_gemm, grouped_gemm<>)
OCTOFOLD_EXPORT_AS(grouped_gemm_by_candidate, grouped_gemm<String>)
OCTOFOLD_EXPORT_AS(masked_gemm, masked_gemm<>)
OCTOFOLD_EXPORT_AS(masked_gemm_by_candidate, masked_gemm<String>)
OCTOFOLD_EXPORT_AS(grouped_gemm_k, grouped_gemm_k<>)
OCTOFOLD_EXPORT_AS(grouped_gemm_k_by_candidate, grouped_gemm_k<String>)
OCTOFOLD_EXPORT_AS(grouped_gated_gemm, grouped_gated_gemm<>)
OCTOFOLD_EXPORT_AS(grouped_gated_gemm_by_candidate, grouped_gated_gemm<String>)
OCTOFOLD_EXPORT(grouped_gemm_candidates)

}  // namespace octofold::bindings
