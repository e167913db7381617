// FP8 products: gemm, grouped_gemm and gated_gemm.
#include <string>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <variant>

#include "octofold/error.h"
#include "octofold/gated_gemm.h"
#include "octofold/gemm.h"
#include "octofold/grouped_gemm.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using Tensor = tvm::ffi::TensorView;
using OptionalBool = tvm::ffi::Optional<bool>;
using OptionalInt = tvm::ffi::Optional<std::int64_t>;
using tvm::ffi::String;

constexpr std::string_view kOutputTypes = "bfloat16, float16 or float32";
constexpr std::string_view kAddend = "that of 'out' or float32";

// How an operand in high precision is cast.
struct Cast {
  const OptionalText& dtype;
  const OptionalBool& power_of_two;
  const OptionalText& overflow;
  const OptionalText& rule;
};

std::variant<ScaledTensorView, CastOperand> a_of(const CastOperation& operation, const Tensor& a,
                                                 const OptionalTensor& scale,
                                                 const OptionalText& granularity,
                                                 const Cast& cast) {
  if (scale) return operation.scaled_input("a", a, *scale, granularity.value());
  Format format = format_of(cast.power_of_two, cast.overflow.value(), cast.rule.value());
  format.dtype = parse_dtype(view_of(cast.dtype.value()));
  return CastOperand{.data = operation.input("a", a), .format = format};
}

}  // namespace

std::optional<Arrivals> arrivals_of(const CastOperation& operation, const OptionalTensor& flags,
                                    const OptionalInt& own) {
  if (!flags) return std::nullopt;
  return Arrivals{.flags = view_of(operation.name, "arrivals.flags", *flags, "int32"),
                  .own = own.value()};
}

// Inputs come first, then what is written, then options, then the stream: in all of these
// functions. Without `a_scale` a is cast, as `dtype` and what follows say.
void gemm(Tensor a, OptionalTensor a_scale, Tensor b, Tensor b_scale, OptionalTensor c,
          OptionalTensor bias, OptionalTensor flags, Tensor out, OptionalText a_granularity,
          String b_granularity, bool fast_accumulation, bool batch_invariant, OptionalText dtype,
          OptionalBool power_of_two, OptionalText overflow, OptionalText rule, OptionalInt own,
          OptionalStream stream) {
  constexpr CastOperation kOperation{"gemm"};
  const GemmArguments arguments{
      .a = a_of(kOperation, a, a_scale, a_granularity, {dtype, power_of_two, overflow, rule}),
      .b = kOperation.scaled_input("b", b, b_scale, b_granularity),
      .out = view_of(kOperation.name, "out", out, kOutputTypes),
      .c = kOperation.optional("c", c, kAddend),
      .bias = kOperation.optional("bias", bias, kAddend),
      .fast_accumulation = fast_accumulation,
      .batch_invariant = batch_invariant,
      .arrivals = arrivals_of(kOperation, flags, own)};
  octofold::gemm(arguments, stream_of(stream, out));
}

void grouped_gemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor numbers,
                  OptionalTensor c, OptionalTensor bias, Tensor out, String a_granularity,
                  String b_granularity, String groups, OptionalInt expected_rows,
                  OptionalText layout, bool fast_accumulation, bool batch_invariant,
                  OptionalStream stream) {
  constexpr CastOperation kOperation{"grouped_gemm"};
  octofold::grouped_gemm(
      {.a = kOperation.scaled_input("a", a, a_scale, a_granularity),
       .b = kOperation.scaled_input("b", b, b_scale, b_granularity),
       .groups = groups_of<Groups>(kOperation, view_of(groups), numbers, expected_rows, layout),
       .out = view_of(kOperation.name, "out", out, kOutputTypes),
       .c = kOperation.optional("c", c, kAddend),
       .bias = kOperation.optional("bias", bias, kAddend),
       .fast_accumulation = fast_accumulation,
       .batch_invariant = batch_invariant},
      stream_of(stream, out));
}

void gated_gemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, OptionalTensor offsets,
                Tensor out, Tensor out_scale, String a_granularity, String b_granularity,
                String activation, OptionalBool power_of_two, String overflow, String rule,
                bool batch_invariant, OptionalStream stream) {
  constexpr CastOperation kOperation{"gated_gemm"};
  GatedGemmArguments arguments{
      .a = kOperation.scaled_input("a", a, a_scale, a_granularity),
      .b = kOperation.scaled_input("b", b, b_scale, b_granularity),
      .out = target_of(kOperation.name, out, out_scale, format_of(power_of_two, overflow, rule)),
      .activation = parse_activation(view_of(activation)),
      .batch_invariant = batch_invariant};
  if (offsets) {
    arguments.groups = RowGroups{view_of(kOperation.name, "groups.offsets", *offsets, "int32")};
  }
  octofold::gated_gemm(arguments, stream_of(stream, out));
}

OCTOFOLD_EXPORT(gemm)
OCTOFOLD_EXPORT(grouped_gemm)
OCTOFOLD_EXPORT(gated_gemm)

}  // namespace octofold::bindings
