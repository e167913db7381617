// The matrix says what planners do: each is asked for a problem of each cell. Refusals say what is
// expected; GPUs may be targets of earlier ones.
#include "plan/attention.h"
#include "plan/cast.h"
#include "plan/norm.h"
#include "plan/operands.h"
#include "plan/product.h"
#include "plan/routing.h"
#include "plan/small.h"
#include "plan/weight_only.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::SourceKind;
using config::Work;
using enum DType;

constexpr int kCapabilities[] = {70, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130};

using Kernels = std::vector<KernelPlan>;

bool has_scales_or_codes(Form form) { return form >= Form::kCodes; }

Granularity granularity_of(Form form) {
  switch (form) {
    case Form::kChannel: return Granularity::kChannel;
    case Form::kBlock1x128: return Granularity::kBlock1x128;
    case Form::kBlock128x128: return Granularity::kBlock128x128;
    default: return Granularity::kTensor;
  }
}

DType type_of(Form form) {
  switch (form) {
    case Form::kNumbers:
    case Form::kFloat32: return kFloat32;
    case Form::kFloat16: return kFloat16;
    case Form::kBFloat16: return kBFloat16;
    default: return kE4M3;
  }
}

bool has_blocks(Form form) { return varies_along_k(granularity_of(form)); }

Kernels plan_casts(const MatrixRow& row, const Gpu& gpu) {
  const std::string_view called = row.rule->called;
  if (called == "convert_dtype") return plan_convert({.rows = 256, .cols = 256}, gpu).kernels;
  if (called == "transpose") return plan_transpose({.rows = 256, .cols = 256}, gpu).kernels;
  if (called == "dequantize") {
    const ConvertProblem problem{
        .rows = 256, .cols = 256, .scaled = true, .granularity = granularity_of(row.forms[0])};
    return plan_convert(problem, gpu).kernels;
  }
  CastProblem problem{.rows = 256, .cols = 256};
  const Form out = called == "cast" ? row.forms[0] : row.forms.back();
  problem.format.granularity = granularity_of(out);
  if (called == "cast") {
    const Form transposed = row.forms[1];
    problem.to_transposed = true;
    problem.transposed_by_channel = transposed != out && transposed == Form::kChannel;
    problem.transposed_by_squares = transposed != out && transposed == Form::kBlock128x128;
  } else if (called == "cast_gathered") {
    problem.source.kind = SourceKind::kGathered;
  } else if (called != "quantize") {
    problem.source.kind =
        called == "cast_activated" ? SourceKind::kActivation : SourceKind::kActivationGradient;
    problem.source.scaled = has_scales_or_codes(row.forms[0]);
    if (problem.source.scaled) problem.source.granularity = granularity_of(row.forms[0]);
  }
  return plan_cast(problem, gpu).kernels;
}

Kernels plan_norms(const MatrixRow& row, const Gpu& gpu) {
  if (row.rule->called == "norm_gradient") {
    return plan_norm_backward({.rows = 16, .cols = 256}, gpu).kernels;
  }
  NormProblem problem{.rows = 16, .cols = 256, .output = config::NormOutput::kNumbers};
  if (row.rule->called != "norm") {
    problem.format.granularity = granularity_of(row.forms[0]);
    const bool casts = row_kernel_casts(problem.format.granularity, true, false, false);
    problem.output = casts ? config::NormOutput::kCodes : config::NormOutput::kNothing;
  }
  return plan_norm(problem, gpu).kernels;
}

RoutingPlan routing_plan(std::string_view called, const Gpu& gpu) {
  if (called == "top_k") return plan_top_k({.tokens = 4, .experts = 8, .slots = 2}, gpu);
  if (called == "top_k_gradient") {
    return plan_top_k_gradient({.tokens = 4, .experts = 8, .slots = 2}, gpu);
  }
  if (called == "sort_by_expert") return plan_sort({.slots = 8, .experts = 8}, gpu);
  if (called == "combine") return plan_combine({.tokens = 4, .cols = 256}, gpu);
  if (called == "activation_dots") return plan_activation_dots({.slots = 8, .cols = 256}, gpu);
  return plan_combine_gradient({.tokens = 4, .cols = 256}, gpu);
}

Kernels plan_dots(const MatrixRow& row, const Gpu& gpu) {
  const DotProblem problem{.size = 256,
                           .a = type_of(row.forms[0]),
                           .b = type_of(row.forms[1]),
                           .a_blocks = has_blocks(row.forms[0]),
                           .b_blocks = has_blocks(row.forms[1])};
  return plan_dot(problem, gpu).kernels;
}

Kernels plan_weights(const MatrixRow& row, const Gpu& gpu) {
  const Form x = row.forms[0];
  WeightOnlyProblem problem{.rows = 4,
                            .columns = 256,
                            .depth = 256,
                            .x = type_of(x),
                            .out = has_scales_or_codes(x) ? kFloat32 : type_of(x),
                            .transposed = row.rule->called.ends_with("_gradient"),
                            .w_scales = granularity_of(row.forms[1]),
                            .x_blocks = has_blocks(x)};
  if (row.rule->called.starts_with("grouped_")) {
    problem.groups = 8;
    problem.work = Work::kMaskedRows;
    EXPECT_FALSE(plan_weight_only(problem, gpu).kernels.empty());
    problem.work = Work::kGroupedRows;
  }
  return plan_weight_only(problem, gpu).kernels;
}

Kernels plan_attentions(const MatrixRow& row, const Gpu& gpu) {
  const bool of_keys = row.forms[1] == Form::kKeysOfHead;
  const AttentionProblem problem{
      .form = {.q = type_of(row.forms[0]), .k_scales = of_keys, .v_scales = of_keys}};
  return plan_attention(problem, gpu).kernels;
}

Kernels plan_products(const MatrixRow& row, const Gpu& gpu) {
  const std::string_view called = row.rule->called;
  GemmProblem problem{.product = {.m = 256, .n = 256, .k = 256}};
  GemmForm& form = problem.product.form;
  problem.dynamic.exists = row.forms[0] == Form::kNumbers;
  if (!problem.dynamic.exists) form.a.scales = granularity_of(row.forms[0]);
  form.b.scales = granularity_of(row.forms[1]);
  problem.gated.exists = called == "gated_gemm";
  if (problem.gated.exists) form.out = kE4M3;
  EXPECT_EQ(called == "grouped_gemm" ? called : operation_of(problem), called);
  std::vector<Work> works{Work::kDense};
  if (called == "grouped_gemm")
    works = {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth};
  if (called == "gated_gemm") works.push_back(Work::kGroupedRows);
  Kernels kernels;
  for (const Work work : works) {
    problem.work = work;
    problem.groups = work == Work::kDense ? 1 : 2;
    problem.expected = work == Work::kDense ? 0 : 128;
    kernels = plan_product(problem, gpu).kernels;
    EXPECT_FALSE(kernels.empty());
  }
  return kernels;
}

Kernels plan_row(const MatrixRow& row, const Gpu& gpu) {
  switch (row.rule->operation) {
    case Operation::kCast: return plan_casts(row, gpu);
    case Operation::kNorm: return plan_norms(row, gpu);
    case Operation::kRotary:
      return plan_rotary({.tokens = 4, .heads = 4, .head_size = 64}, gpu).kernels;
    case Operation::kRouting: return routing_plan(row.rule->called, gpu).kernels;
    case Operation::kDot: return plan_dots(row, gpu);
    case Operation::kWeightOnly: return plan_weights(row, gpu);
    case Operation::kAttention: return plan_attentions(row, gpu);
    default: return plan_products(row, gpu);
  }
}

// The public function that a planner names: all sources of a cast are cast()'s.
std::string planned_by(const MatrixRow& row) {
  const std::string_view called = row.rule->called;
  const bool casts = called == "quantize" || called.starts_with("cast_");
  return std::string(casts ? "cast" : called) + ": ";
}

std::string described(const MatrixRow& row) {
  std::string text(row.rule->called);
  for (const Form form : row.forms) text.append(" ").append(word(form));
  return text;
}

TEST(CapabilityMatrixTest, PlannersDoWhatItSays) {
  for (const MatrixRow& row : matrix_rows()) {
    if (!row.refused.empty()) continue;
    for (const int capability : kCapabilities) {
      SCOPED_TRACE(described(row) + " on " + std::to_string(capability));
      const Gpu gpu = gpu_of(capability, 100);
      const Support support = support_of(row, gpu);
      if (support.why_not.empty()) {
        EXPECT_TRUE(support.how == SupportKind::kNative || support.how == SupportKind::kKernels);
        EXPECT_NO_THROW(EXPECT_FALSE(plan_row(row, gpu).empty()));
        continue;
      }
      try {
        plan_row(row, gpu);
        ADD_FAILURE() << "planned, though " << support.why_not;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.what(), HasSubstr(support.why_not));
        EXPECT_THAT(error.what(), testing::StartsWith(planned_by(row)));
      }
    }
  }
}

// Ways that no planner tells apart; tests/python/test_capabilities.py has more.
TEST(CapabilityMatrixTest, NamesTheWay) {
  std::map<std::string, MatrixRow> rows;
  for (const MatrixRow& row : matrix_rows()) rows[described(row)] = row;
  const auto way = [&](const char* row, int capability) {
    return support_of(rows.at(row), gpu_of(capability, 100)).how;
  };
  EXPECT_EQ(way("gemm 1x128 128x128", 70), SupportKind::kCpu);
  EXPECT_EQ(way("gemm numbers tensor", 89), SupportKind::kCast);
  EXPECT_EQ(way("gemm_weight_only bfloat16 1x128", 75), SupportKind::kCpu);
}

// True if there are to be kernels.
bool is_served(Operation operation, int capability) {
  switch (operation) {
    case Operation::kProduct:
    case Operation::kGroupedProduct:
    case Operation::kGatedProduct:
      return capability == 89 || capability == 90 || capability / 10 == 12;
    case Operation::kDynamicProduct: return capability == 90;
    default: return capability >= 75;
  }
}

TEST(CapabilityTest, EachRefusalSaysWhatIsExpectedAndWhatCame) {
  for (const int capability : kCapabilities) {
    for (const Operation operation : kOperations) {
      const std::string reason = why_not(operation, gpu_of(capability, 100));
      if (is_served(operation, capability)) {
        EXPECT_EQ(reason, "") << capability << word(operation);
      } else {
        EXPECT_THAT(reason,
                    AllOf(HasSubstr("expected a GPU of compute capability "),
                          HasSubstr(core::format("got {}.{}", capability / 10, capability % 10))));
      }
    }
  }
}

TEST(CapabilityTest, ProductsSayWhichGpusHaveThemAndWhyDataCenterBlackwellHasNone) {
  const auto reason = [](Operation operation, int capability) {
    return why_not(operation, gpu_of(capability, 100));
  };
  for (const Operation operation :
       {Operation::kProduct, Operation::kGroupedProduct, Operation::kGatedProduct}) {
    EXPECT_THAT(reason(operation, 86),
                AllOf(HasSubstr("8.9, 9.0 or 12.x, got 8.6"), Not(HasSubstr("tcgen05"))));
    for (const int capability : {100, 103, 110}) {
      EXPECT_THAT(reason(operation, capability), HasSubstr("tcgen05"));
    }
  }
  EXPECT_THAT(reason(Operation::kDynamicProduct, 89), HasSubstr("9.0 (H100, H200), got 8.9"));
}

TEST(CapabilityTest, BFloat16IsForTensorCoresFrom80On) {
  const Gpu turing = gpu_of(75, 100);
  for (const Operation operation : {Operation::kWeightOnly, Operation::kAttention}) {
    EXPECT_THAT(why_not_bfloat16(operation, turing), HasSubstr("8.0 or later"));
    EXPECT_EQ(why_not_bfloat16(operation, gpu_of(80, 100)), "");
    EXPECT_NO_THROW(require_kernels(operation, "f", DType::kFloat16, turing));
    EXPECT_THROW(require_kernels(operation, "f", DType::kBFloat16, turing), Error);
  }
  EXPECT_EQ(why_not_bfloat16(Operation::kCast, turing), "");
  EXPECT_EQ(why_not_bfloat16(Operation::kDot, turing), "");
  EXPECT_THAT(test::error_of([] { require_kernels(Operation::kNorm, "cast", gpu_of(70, 100)); },
                             ErrorCode::kUnsupported),
              AllOf(HasSubstr("cast: "), HasSubstr("CPU backend")));
}

TEST(TargetTest, IsTheGpuItselfWhereNoneIsAskedFor) {
  for (const int target : {0, 90}) {
    const Gpu gpu = as_target(kHopper, target);
    EXPECT_FALSE(gpu.is_translated);
    EXPECT_EQ(gpu.shared_memory_per_block, kHopper.shared_memory_per_block);
    EXPECT_EQ(architecture(gpu), "sm_90a");
  }
}

TEST(TargetTest, HasTheLimitsOfThoseThatItStandsFor) {
  for (const auto& [target, kilobytes] :
       {std::pair{75, 64}, {80, 163}, {86, 99}, {87, 163}, {89, 99}}) {
    const Gpu gpu = as_target(kHopper, target);
    EXPECT_TRUE(gpu.is_translated);
    EXPECT_EQ(gpu.compute_capability(), target);
    EXPECT_EQ(gpu.multiprocessors, 132);
    EXPECT_EQ(gpu.shared_memory_per_block, kilobytes * 1024);
    EXPECT_EQ(architecture(gpu), "compute_" + std::to_string(target));
  }
  EXPECT_THAT(test::error_of([] { as_target(gpu_of(86, 100), 89); }),
              AllOf(HasSubstr("OCTOFOLD_TARGET"), HasSubstr("sm_86"), HasSubstr("sm_89")));
}

// Fused casts stage their inputs in shared memory.
TEST(TargetTest, CastsFitIntoTheSharedMemory) {
  for (const int target : {75, 80, 86, 89, 90}) {
    const Gpu gpu = as_target(kHopper, target);
    for (const DType in : {kFloat32, kBFloat16}) {
      for (const auto kind :
           {SourceKind::kActivation, SourceKind::kActivationGradient, SourceKind::kNormed}) {
        const CastProblem problem{.rows = 256,
                                  .cols = 1024,
                                  .format = {.in = in},
                                  .source = {.kind = kind},
                                  .to_transposed = true};
        for (const CastLaunch& launch : cast_launches(problem, gpu)) {
          const auto& config = std::get<config::TileCastConfig>(launch.config);
          EXPECT_EQ(config.invalid_reason(), nullptr);
          EXPECT_LE(config.shared_bytes(), gpu.shared_memory_per_block);
          EXPECT_TRUE(target != 90 || config.is_staged());
        }
      }
    }
  }
}

}  // namespace
}  // namespace octofold::plan
