#include "octofold/gemm.h"

#include <string_view>
#include <variant>
#include <vector>

#include "octofold/batch_invariant.h"
#include "octofold/gated_gemm.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "core/product.h"
#include "ops/backend.h"
#include "ops/cast_targets.h"
#include "ops/grouped_operands.h"
#include "ops/inputs.h"
#include "ops/product.h"

namespace octofold {
namespace {

// The operands of gemm(), as matrices; `given_a` is A as the caller has it.
void set_operands(const core::Arguments& check, const ScaledTensorView& given_a,
                  const GemmArguments& given, core::Product& product) {
  product.a = core::flatten(check, "a", given_a);
  ops::check_operands(check, product.a, product.b);
  ops::require_accumulation(check, product.a.granularity, product.b.granularity,
                            given.fast_accumulation);
}

// The same of an A that is cast.
void set_operands(const core::Arguments& check, const CastOperand& given_a,
                  const GemmArguments& given, core::Product& product) {
  const Format& format = given_a.format;
  check.require_dtype("dtype", {.dtype = format.dtype}, {DType::kE4M3, DType::kE5M2});
  check.require_enumerator("granularity", format.granularity);
  if (format.granularity != Granularity::kBlock1x128) {
    check.fail("granularity", "1x128, the only scales that the product can compute",
               name(format.granularity));
  }
  const TensorView a = core::flatten(check, "a", given_a.data);
  check.require_input_matrix("a", a);
  check.require_dtype("a", a, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_scaled_input("b", given.b);
  check.require_same_device("b", given.b.data, a.device);
  ops::require_depth(check, "b", given.b.data, "a", a);
  if (given.c) check.fail("c", "it to be omitted beside an 'a' that is cast", "one");
  ops::require_accumulation(check, Granularity::kBlock1x128, given.b.granularity,
                            given.fast_accumulation);
  product.a = {a, {}, Granularity::kBlock1x128};
  product.cast_a = ops::format_of(check, format, a.dtype);
}

// Checks what is said of the rows of product.a, which is FP8.
void set_arrivals(const core::Arguments& check, const Arrivals& given, core::Product& product) {
  const TensorView& flags = given.flags;
  check.require_vector("arrivals.flags", flags);
  check.require_dtype("arrivals.flags", flags, {DType::kInt32});
  check.require_same_device("arrivals.flags", flags, product.a.data.device);
  const std::int64_t shards = flags.shape[0], rows = product.a.data.shape[0];
  if (shards < 1 || rows % shards != 0) {
    check.fail("arrivals.flags", core::format("as many as divide {} rows of 'a'", rows),
               core::format("{}", shards));
  }
  if (given.own < 0 || given.own >= shards) {
    check.fail("arrivals.own", core::format("the number of one of {} shards", shards),
               core::format("{}", given.own));
  }
  if (product.a.granularity == Granularity::kBlock128x128 && shards > 1 &&
      rows / shards % kScaleBlock != 0) {
    check.fail(
        "arrivals.flags",
        core::format("shards of a multiple of {} rows, for 128x128 scales of 'a'", kScaleBlock),
        core::format("{} of {}", shards, rows / shards));
  }
  if (product.a.data.shape[1] == 0) check.fail("arrivals", "it to be omitted where K = 0", "some");
  product.arrivals = {
      .flags = static_cast<const std::int32_t*>(flags.data), .shards = shards, .own = given.own};
}

const TensorView& data_of(const ScaledTensorView& a) { return a.data; }
const TensorView& data_of(const CastOperand& a) { return a.data; }

core::Product checked(const GemmArguments& given) {
  const core::Arguments check("gemm");
  core::Product product{.b = given.b,
                        .bias = given.bias,
                        .fast_accumulation = given.fast_accumulation,
                        .batch_invariant = given.batch_invariant || is_batch_invariant(),
                        .candidate = ops::used_candidate()};
  std::visit([&](const auto& a) { set_operands(check, a, given, product); }, given.a);
  const TensorView& a =
      std::visit([](const auto& each) -> const TensorView& { return data_of(each); }, given.a);
  const std::int64_t columns = given.b.data.shape[0];
  ops::require_shape_of_result(check, "out", given.out, a, columns);
  product.out = core::flatten(check, "out", given.out);
  ops::Inputs inputs(check);
  product.cast_a ? inputs.add("a", product.a.data) : inputs.add("a", product.a);
  inputs.add("b", product.b);
  if (given.arrivals) {
    if (product.cast_a)
      check.fail("arrivals", "it to be omitted beside an 'a' that is cast", "some");
    set_arrivals(check, *given.arrivals, product);
    inputs.add("arrivals.flags", given.arrivals->flags);
  }
  ops::check_output(check, product.out, inputs.all());
  if (given.c) {
    ops::require_shape_of_result(check, "c", *given.c, a, columns);
    product.c = core::flatten(check, "c", *given.c);
    ops::check_c(check, *product.c, product.out);
  }
  ops::check_bias(check, product.bias, product.out);
  return product;
}

void require_gated(const core::Arguments& check, const GatedGemmArguments& given) {
  check.require_enumerator("activation", given.activation);
  if (!is_gated(given.activation)) {
    check.fail("activation", "one of swiglu, geglu-tanh, geglu, swiglu-oss, which take gate and up",
               name(given.activation));
  }
  if (given.out.scales != ScaleSource::kComputed) {
    check.fail("out.scales", "kComputed, because the product computes them", "another ScaleSource");
  }
}

// Checks what is written, of so many rows of b for a row of it, and sets the epilogue.
void set_gated_output(const core::Arguments& check, const GatedGemmArguments& given,
                      std::int64_t b_rows, core::Product& product) {
  ops::require_scales(check, "a", plan::kGatedA, ops::form_of(product.a));
  ops::require_scales(check, "b", plan::kGatedB, ops::form_of(product.b));
  if (b_rows % 2 != 0) {
    check.fail("b", "an even number of rows, as many gates as ups", core::format("{}", b_rows));
  }
  const auto leading = ops::shape_of(given.a.data).first(given.a.data.rank - 1);
  std::vector<std::int64_t> shape(leading.begin(), leading.end());
  shape.push_back(b_rows / 2);
  const CastTarget out = ops::checked_target(check, "out", given.out, shape, product.a.data.device);
  ops::Inputs memory(check);
  memory.add("a", product.a);
  memory.add("b", {product.b.data, given.b.scale});
  if (given.groups) memory.add("groups.offsets", given.groups->offsets);
  memory.add("out", out);
  memory.require_all_apart();
  ops::require_scales(check, "out", plan::kGatedOut, ops::form_of(given.out));
  product.out = out.data;
  product.gated = {given.activation, ops::format_of(check, out.format, DType::kBFloat16),
                   out.scale};
}

core::Product checked(const GatedGemmArguments& given) {
  const core::Arguments check("gated_gemm");
  require_gated(check, given);
  core::Product product{.b = given.b,
                        .batch_invariant = given.batch_invariant || is_batch_invariant(),
                        .candidate = ops::used_candidate()};
  std::int64_t b_rows = 0;
  if (given.groups) {
    b_rows = ops::set_groups_of_rows(check, given.a, given.b, *given.groups, product);
  } else {
    product.a = core::flatten(check, "a", given.a);
    ops::check_operands(check, product.a, product.b);
    b_rows = given.b.data.shape[0];
  }
  set_gated_output(check, given, b_rows, product);
  return product;
}

}  // namespace

void gemm(const GemmArguments& arguments, Stream stream) {
  ops::run("gemm", checked(arguments), stream);
}

void gated_gemm(const GatedGemmArguments& arguments, Stream stream) {
  ops::run("gated_gemm", checked(arguments), stream);
}

}  // namespace octofold
