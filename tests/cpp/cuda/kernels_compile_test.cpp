// Every kernel that can be chosen, compiled for its GPU by NVRTC: registers do not leave the
// register file, and tensor cores do the products. Of kernels of which there are thousands, those
// that take most registers, with all that decides the shape of their code.
#include "support/cast_kernels.h"
#include "support/inference_kernels.h"
#include "support/nvrtc.h"
#include "support/product_kernels.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::NormForm;
using config::NormOperand;
using test::combinations;
using test::Kernels;
using test::casts::kBools;
using test::casts::kInputs;

constexpr NormOperand kNone = NormOperand::kNone, kSame = NormOperand::kInputType,
                      kFloat = NormOperand::kFloat32;

// RMSNorm and LayerNorm as models have them, without anything, and with everything.
constexpr NormForm kNorms[] = {
    {.weight = kSame},
    {.weight = kFloat},
    {.kind = NormKind::kLayer, .weight = kSame, .bias = kSame},
    {.kind = NormKind::kLayer, .scale = kSame, .shift = kSame},
    {.kind = NormKind::kLayer, .weight = kFloat, .bias = kFloat, .scale = kFloat, .shift = kFloat}};

// The form for x of a type; operands in FP32 are of x's type if the problem is in FP32, too.
NormForm for_type(NormForm form, DType in) {
  for (NormOperand* operand : {&form.weight, &form.bias, &form.scale, &form.shift}) {
    if (in == DType::kFloat32 && *operand == kFloat) *operand = kSame;
  }
  return form;
}

// Two types of 16 bits differ in a conversion. A rule that divides has larger casters.
void add_norms(Kernels& kernels, const NormForm& norm) {
  for (const auto& [in, granularity, residual, cols] :
       combinations(kInputs, std::array{Granularity::kBlock1x128, Granularity::kChannel}, kBools,
                    std::array<std::int64_t, 5>{512, 4096, 7168, 28'672, 100'000})) {
    const bool is_one_of_few = granularity == Granularity::kBlock1x128 && cols == 4096;
    if (in == DType::kFloat16 && !is_one_of_few) continue;
    plan::NormProblem problem{.rows = 256,
                              .cols = cols,
                              .form = for_type(norm, in),
                              .adds_residual = residual,
                              .format = {.in = in, .granularity = granularity}};
    if (residual) problem.format.rule = config::kDeepSeekRule;
    for (const config::NormOutput output :
         {config::NormOutput::kCodes, config::NormOutput::kNothing, config::NormOutput::kNumbers}) {
      problem.output = output;
      if (output != config::NormOutput::kNumbers || granularity == Granularity::kChannel)
        kernels.add(problem);
    }
    if (cols != 512) continue;
    problem.output = config::NormOutput::kCodes;
    problem.inputs_are_aligned = problem.codes_are_aligned = false;
    kernels.add(problem);
  }
}

// Casts of what is normed, to both targets, by scales that every kind of kernel finds.
void add_casts_of_norms(Kernels& kernels, const NormForm& norm) {
  for (const auto& [in, granularity, aligned] :
       combinations(kInputs, test::kGranularities, kBools)) {
    if (granularity == Granularity::kChannel || (aligned && in == DType::kFloat16)) continue;
    const test::casts::Cast cast(in, granularity, config::kDeepGemmRule,
                                 {.kind = config::SourceKind::kNormed, .norm = for_type(norm, in)});
    kernels.add(aligned ? cast : cast.unaligned());
  }
}

void add_norm_gradients(Kernels& kernels, const NormForm& norm) {
  for (const auto& [in, adds_gradient, aligned, cols] : combinations(
           kInputs, kBools, kBools, std::array<std::int64_t, 5>{64, 4096, 7168, 12'288, 28'672})) {
    if (in == DType::kFloat16 && cols != 4096) continue;
    const NormForm form = for_type(norm, in);
    kernels.add(plan::NormBackwardProblem{.rows = 256,
                                          .cols = cols,
                                          .form = form,
                                          .in = in,
                                          .adds_gradient = adds_gradient,
                                          .of_weight = form.weight != kNone,
                                          .of_bias = form.bias != kNone,
                                          .of_scale = form.scale != kNone,
                                          .of_shift = form.shift != kNone,
                                          .is_aligned = aligned});
  }
}

void add_top_k(Kernels& kernels) {
  using enum Scoring;
  for (const auto& [in, experts] :
       combinations(kInputs, std::array<std::int64_t, 6>{8, 64, 128, 256, 384, 1024})) {
    plan::TopKProblem problem{.tokens = 100, .experts = experts, .slots = 8, .in = in};
    kernels.add(problem);
    problem.scoring = kSigmoid;
    for (const auto& [biased, groups] : combinations(kBools, std::array<std::int64_t, 2>{1, 8})) {
      problem.biased = biased;
      problem.groups = groups;
      kernels.add(problem);
    }
    for (const Scoring scoring : {kSoftmax, kSigmoid}) {
      kernels.add(plan::TopKGradientProblem{
          .tokens = 100, .experts = experts, .slots = 8, .in = in, .scoring = scoring});
    }
  }
}

void add_routes(Kernels& kernels) {
  using enum Activation;
  for (const std::int64_t slots : {100, 100'000}) {
    for (const std::int64_t experts : {8, 512, 1024, 2048}) {
      kernels.add(plan::SortProblem{slots, experts});
    }
  }
  for (const bool ascends : kBools) {
    kernels.add(plan_group_check({.ascends = ascends}, kernels.gpu()).kernels);
  }
  for (const auto& [in, out, aligned] : combinations(kInputs, kInputs, kBools)) {
    for (const std::int64_t cols : {64, 7168}) {
      for (const bool weighted : kBools) {
        kernels.add(plan::CombineProblem{.tokens = 100,
                                         .cols = cols,
                                         .in = in,
                                         .out = out,
                                         .weighted = weighted,
                                         .adds = weighted == (in == out),
                                         .is_aligned = aligned});
      }
      kernels.add(plan::CombineGradientProblem{
          .tokens = 100, .cols = cols, .gradient = out, .in = in, .is_aligned = aligned});
    }
  }
  for (const auto& [in, aligned, activation] :
       combinations(kInputs, kBools, std::array{kSwiGlu, kSwiGluOss, kGeGluErf, kReluSquared})) {
    kernels.add(plan::ActivationDotsProblem{
        .slots = 100, .cols = 768, .in = in, .activation = activation, .is_aligned = aligned});
    kernels.add(plan::ExpertSumsProblem{
        .experts = 8, .cols = 768, .in = in, .activation = activation, .is_aligned = aligned});
    if (in != DType::kBFloat16) continue;
    for (const auto kind :
         {config::SourceKind::kActivation, config::SourceKind::kActivationGradient}) {
      kernels.add(plan::CastProblem{.rows = 100,
                                    .cols = 768,
                                    .format = {.in = in},
                                    .source = {.kind = kind, .activation = activation},
                                    .to_rows = false,
                                    .x_is_aligned = aligned});
    }
  }
  for (const auto& [in, aligned] : combinations(kInputs, kBools)) {
    kernels.add(
        plan::ExpertSumsProblem{.experts = 8, .cols = 768, .in = in, .is_aligned = aligned});
  }
}

void add_rotary(Kernels& kernels) {
  for (const auto& [type, aligned] : combinations(kInputs, kBools)) {
    for (const std::int64_t heads : {4, 32}) {
      if (kernels.gpu().compute_major < 9 && heads == 4) continue;
      kernels.add(plan::RotaryProblem{
          .tokens = 100, .heads = heads, .head_size = 128, .type = type, .is_aligned = aligned});
    }
  }
}

void add_dots(Kernels& kernels) {
  for (const auto& [a, b] :
       combinations(std::array{DType::kE4M3, DType::kE5M2},
                    std::array{DType::kE4M3, DType::kBFloat16, DType::kFloat32})) {
    kernels.add(
        plan::DotProblem{.size = 100'000, .a = a, .b = b, .a_blocks = true, .b_blocks = is_fp8(b)});
  }
  kernels.add(plan::DotProblem{.size = 100, .a = DType::kFloat16, .is_aligned = false});
}

// GPUs before Hopper: of each kind of kernel a few.
void add_few_of_each(Kernels& kernels) {
  using enum DType;
  using test::casts::Cast;
  for (const Granularity granularity : test::kGranularities) {
    kernels.add(Cast(kFloat32, granularity).of(512).to_rows_alone());
    kernels.add(Cast(kBFloat16, granularity).of(512));
  }
  for (const config::CastSource& source :
       {test::casts::kSwiGluGradient, {.kind = config::SourceKind::kNormed}}) {
    kernels.add(Cast(kBFloat16, Granularity::kBlock1x128, config::kDeepGemmRule, source).of(512));
  }
  kernels.add(Cast(kBFloat16, Granularity::kBlock1x128, config::kDeepGemmRule, test::casts::kSwiGlu)
                  .of(512)
                  .to_rows_alone());
  for (const auto& [fp8, other] : combinations(std::array{kE4M3, kE5M2}, kInputs)) {
    kernels.add(plan::ConvertProblem{.rows = 64, .cols = 512, .in = fp8, .out = other});
    kernels.add(plan::ConvertProblem{.rows = 64, .cols = 512, .in = other, .out = fp8});
  }
  for (const bool aligned : kBools) {
    kernels.add(plan::TransposeProblem{.rows = 256, .cols = 512, .x_is_aligned = aligned});
  }
  kernels.add(plan::NormProblem{.rows = 64, .cols = 4096, .form = kNorms[0]});
  kernels.add(plan::NormBackwardProblem{.rows = 64, .cols = 4096, .form = kNorms[0]});
  plan::TopKProblem top{.tokens = 100, .experts = 256, .slots = 8, .in = kBFloat16};
  kernels.add(top);
  top.scoring = Scoring::kSigmoid;
  top.groups = 8;
  kernels.add(top);
  kernels.add(plan::SortProblem{.slots = 1000, .experts = 256});
  kernels.add(plan::CombineProblem{.tokens = 8, .cols = 4096});
  add_rotary(kernels);
}

struct Family {
  std::string name;
  std::vector<int> targets;
  std::function<void(Kernels&)> add;
  int spills = 0;  // bytes that a thread may put into local memory
  int multiprocessors = 132;
};

// The table: a family's name, the GPUs that it is compiled for, and the function that adds its
// kernels.
std::vector<Family> families() {
  using namespace test::casts;
  using namespace test::inference;
  using namespace test::products;
  const std::vector<int> older{75, 80, 86, 89}, hopper{90}, fp8_by_warps{89, 120},
      all{75, 80, 86, 89, 90, 120};
  std::vector<Family> families{
      {"CastOptions", hopper, add_options},
      {"Conversions", hopper, add_conversions},
      {"Transposes", hopper, add_transposes},
      {"GroupCasts", hopper, add_groups},
      {"FactorsOfTransposes", hopper, add_factors_of_transposes},
      {"NormsInGroups", hopper, add_norms_in_groups},
      // Some of these pairs were refused until one cast() took them all, and no one has tuned them:
      // the worst, a norm with columns, spills 180 bytes.
      {"OptionsOfSources", hopper, add_options_of_sources, 192},
      {"Stacks", hopper, add_stacks},
      {"GivenAmax", hopper, add_given_amax},
      {"Batches", hopper, add_batches},
      {"TopK", hopper, add_top_k},
      {"Routes", hopper, add_routes},
      {"Rotary", hopper, add_rotary},
      {"Dots", all, add_dots},
      {"FewOfEach", older, add_few_of_each},
      {"GemmOntoC", hopper, add_onto_c},
      {"GemmTypes", hopper, add_types},
      {"GemmCasting", hopper, add_casting},
      {"GemmGated", hopper, add_gated},
      {"GemmArriving", hopper, add_arriving},
      {"GemmGroupsOfRows", hopper, add_groups_of_rows},
      {"GemmGroupsOfDepth", hopper, add_groups_of_depth},
      {"GemmByWarps", fp8_by_warps, add_by_warps, 0, 100},
      {"GemmGatedByWarps", fp8_by_warps, add_gated_by_warps, 0, 100},
      {"WeightsFewRows", all, add_few_rows},
      {"WeightsManyRows", all, add_many_rows},
      {"WeightsGradients", all, add_gradients},
      {"WeightsOtherTiles", all, add_other_tiles},
      {"WeightsGroups", all, add_weights_of_groups},
      {"WeightsHopper", hopper, add_hopper_weights},
      {"AttentionFewQueries", all, add_few_queries},
      {"AttentionManyQueries", all, add_many_queries},
      {"AttentionValueSizes", all, add_values_of_another_size},
      {"AttentionWideHeads", all, add_wide_heads},
      {"AttentionHopper", hopper, add_hopper_attention},
  };
  const auto add = [&](const std::string& name, auto function, auto... arguments) {
    families.push_back({name, hopper, [=](Kernels& kernels) { function(kernels, arguments...); }});
  };
  for (const Granularity granularity : test::kGranularities) {
    const std::string name = "Casts_" + std::string(octofold::name(granularity));
    add(name + "_rows", add_plain, granularity, true, false);
    add(name + "_transposed", add_plain, granularity, false, true);
    add(name + "_both", add_plain, granularity, true, true);
  }
  for (const auto kind : {SourceKind::kActivation, SourceKind::kActivationGradient}) {
    const std::string name = kind == SourceKind::kActivation ? "Activations" : "Gradients";
    add(name, add_activations, kind);
    add(name + "OfFp8", add_activations_of_fp8, kind);
    add(name + "InGroups", add_activations_in_groups, kind);
  }
  add("Gathered", add_gathered, kGathered);
  add("Multiplied", add_gathered, kMultiplied);
  for (std::size_t i = 0; i < std::size(kNorms); ++i) {
    const std::string name =
        std::array{"Rms", "RmsFloatWeight", "Layer", "Adaptive", "Everything"}[i];
    add("Norms_" + name, add_norms, kNorms[i]);
    add("NormCasts_" + name, add_casts_of_norms, kNorms[i]);
    add("NormGradients_" + name, add_norm_gradients, kNorms[i]);
  }
  for (const auto& [name, problem] : dense_problems()) add("Gemm_" + name, add_tilings, problem);
  return families;
}

struct Instance {
  Family family;
  int target;
};

std::vector<Instance> instances() {
  std::vector<Instance> all;
  for (const Family& family : families()) {
    for (const int target : family.targets) all.push_back({family, target});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Instance>& info) {
  return info.param.family.name + "_Sm" + std::to_string(info.param.target);
}

class KernelsCompileTest : public test::NvrtcTest<testing::TestWithParam<Instance>> {};

TEST_P(KernelsCompileTest, AreSound) {
  const auto& [family, target] = GetParam();
  Kernels kernels(plan::gpu_of(target, family.multiprocessors), family.spills);
  family.add(kernels);
  EXPECT_NE(kernels.begin(), kernels.end());
  for (const test::ExpectedKernel& kernel : kernels) expect_sound(kernel, kernels.gpu());
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, KernelsCompileTest, testing::ValuesIn(instances()), name_of);

}  // namespace
}  // namespace octofold::cuda
