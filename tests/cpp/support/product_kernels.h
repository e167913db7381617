// The kernels of products, with all that decides the shape of their code, and how
// many products of tensor cores they have.
#pragma once

#include "plan/kernel_plan.h"
#include "support/product_problems.h"
#include "support/sound_kernel.h"

namespace octofold::test::products {

using config::MmaGemmConfig;
using config::Sm90GemmConfig;
using config::Work;
using plan::GemmProblem;
using testing::Ge;
using testing::Le;
using enum DType;
using enum Granularity;

// A problem's kernels that are taken: those of all candidates, or the one that is planned.
enum class Take { kAll, kPlanned };

template <typename Config>
plan::KernelPlan kernel_of(const Config& config, std::string_view header, std::string_view kernel) {
  plan::KernelPlan plan = plan::kernel_plan("test", header, kernel, config, 1);
  if constexpr (requires { config.shared_bytes(); }) plan.shared_bytes = config.shared_bytes();
  return plan;
}

inline void add(Kernels& kernels, const Sm90GemmConfig& config) {
  // Four products of 32 values of K for each sub-tile; the compiler unrolls the loop of small
  // tiles, and the last of a group has a loop for one sub-tile of two.
  const int of_step = 4 * config.sub_tiles();
  const bool has_loop_for_one = config.loads_sub_tiles() && config.row_sub_tiles() == 2;
  const Counts whole_steps = testing::ResultOf(
      [=](int count) { return count % (has_loop_for_one ? 4 : of_step); }, testing::Eq(0));
  kernels.add({.plan = kernel_of(config, config.kHeader, config.kKernel),
               .registers = Le(config.registers_at_start()),
               .may_collect_lanes = true,
               .operations = {{SassOperation::kQgmma, AllOf(Ge(of_step), whole_steps)}}});
}

inline void add(Kernels& kernels, const MmaGemmConfig& config) {
  // Four steps of K, each of all sub-tiles by all eights.
  kernels.add({.plan = kernel_of(config, config.kHeader, config.kKernel),
               .registers = Le(config.registers()),
               .static_shared_bytes = 0,
               .may_collect_lanes = true,
               .operations = {{SassOperation::kQmma, 4 * config.sub_tiles() * config.eights()}}});
}

inline void add(Kernels& kernels, const GemmProblem& problem, Take take = Take::kPlanned) {
  const auto add_config = [&](const plan::ProductConfig& config) {
    std::visit([&](const auto& one) { add(kernels, one); }, config);
  };
  if (take == Take::kPlanned) return add_config(plan_product(problem, kernels.gpu()).config);
  for (const auto& [name, config] : product_candidates(problem, kernels.gpu())) add_config(config);
}

// Every tiling of a product. Where threads load or store, and where registers are not scarce (TMA
// adds to C in memory, sums stay in the tensor core): every third one, by turns. Each meets each
// way to load, store and sum, and each granularity on either side.
inline void add_tilings(Kernels& kernels, const GemmProblem& problem) {
  const GemmForm& form = problem.product.form;
  const bool is_tma = problem.operands_fit_tma && problem.output_fits_tma;
  const int step = is_tma && !problem.c_is_out && !form.fast_accumulation ? 1 : 3;
  int turn = static_cast<int>(form.a.scales) + static_cast<int>(form.b.scales) +
             (problem.operands_fit_words ? 0 : 1) + (form.bias == Addend::kNone ? 0 : 2);
  for (const auto& [name, config] : sm90_candidates(problem)) {
    if (turn++ % step == 0) add(kernels, config);
  }
}

// Candidates for which something holds.
template <typename Holds>
void add_if(Kernels& kernels, const GemmProblem& problem, Holds&& holds) {
  for (const auto& [name, config] : sm90_candidates(problem)) {
    if (holds(config)) add(kernels, config);
  }
}
inline bool prefetches_c(const Sm90GemmConfig& config) { return config.prefetches_c(); }

using NamedProblem = std::pair<std::string, GemmProblem>;

// Problems with all that decides the shape of the code but for the epilogue.
inline std::vector<NamedProblem> mainloops() {
  std::vector<NamedProblem> problems;
  for (const auto& [a, b, fast] :
       combinations(kGranularities, kGranularities, std::array{false, true})) {
    if (fast && (varies_along_k(a) || varies_along_k(b))) continue;
    const std::string text = core::format("{}_{}{}", name(a), name(b), fast ? "_fast" : "");
    GemmProblem problem;
    problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .fast_accumulation = fast};
    problems.emplace_back(text + "_tma", problem);
    problem.output_fits_tma = false;
    problems.emplace_back(text + "_direct_stores", problem);
    problem.output_fits_tma = true;
    problem.operands_fit_tma = false;
    problems.emplace_back(text + "_words", problem);
    problem.operands_fit_words = false;
    problems.emplace_back(text + "_threads", problem);
  }
  return problems;
}

// Each body once: mainloops differ in which scales vary along K, not in which are constant along
// it, and have the heaviest epilogue; the pairs that models use most have the lightest one too. The
// element types of A and B only change an instruction's name; add_types() has all of them.
inline std::vector<NamedProblem> dense_problems() {
  std::vector<NamedProblem> problems;
  for (auto [name, problem] : mainloops()) {
    GemmForm& form = problem.product.form;
    const bool is_tma = problem.operands_fit_tma && problem.output_fits_tma;
    const bool is_usual = form.a.scales == form.b.scales ||
                          (form.a.scales == kBlock1x128 && varies_along_k(form.b.scales));
    if (is_tma && is_usual) {
      GemmProblem added = problem;
      added.product.form.out = kFloat32;
      added.product.form.c = Addend::kOutputType;
      added.c_is_out = true;
      problems.emplace_back(name + "_plain", problem);
      problems.emplace_back(name + "_added_in_place", added);
    }
    if (form.a.scales == kTensor || form.b.scales == kTensor) continue;
    if (form.fast_accumulation && !is_tma) continue;
    // Direct stores change the epilogue alone, so not every mainloop needs them.
    if (problem.operands_fit_tma && !problem.output_fits_tma && !is_usual) continue;
    form.a.type = kE5M2;
    form.c = form.bias = Addend::kFloat32;
    if (!problem.output_fits_tma) form.out = kFloat32;
    problems.emplace_back(name + "_with_c_and_bias", problem);
  }
  return problems;
}

// C is brought by TMA, beside a bias.
inline void add_onto_c(Kernels& kernels) {
  for (const auto& [b, fast] : combinations(kGranularities, std::array{false, true})) {
    if (fast && varies_along_k(b)) continue;
    GemmProblem problem;
    problem.product.form = {.a = {.scales = fast ? b : kBlock1x128},
                            .b = {.scales = b},
                            .out = kFloat32,
                            .c = Addend::kOutputType,
                            .bias = Addend::kFloat32,
                            .fast_accumulation = fast};
    add_if(kernels, problem, prefetches_c);
  }
}

inline void add_types(Kernels& kernels) {
  constexpr std::array kFp8{kE4M3, kE5M2};
  for (const auto& [a, b, out, addend] :
       combinations(kFp8, kFp8, std::array{kBFloat16, kFloat16, kFloat32},
                    std::array{Addend::kOutputType, Addend::kFloat32})) {
    GemmProblem problem{.product = {.m = 256, .n = 256, .k = 256}};
    problem.product.form = {
        .a = {.type = a}, .b = {b, kBlock128x128}, .out = out, .c = addend, .bias = addend};
    add(kernels, problem);
  }
  for (const auto& [a, b, out] : combinations(kFp8, kFp8, kFp8)) {
    GemmProblem gated = gated_problem(4096, 4096, 4096);
    gated.product.form.a.type = a;
    gated.product.form.b.type = b;
    gated.product.form.out = out;
    gated.gated.saturate = a == b;
    add(kernels, gated);
  }
}

// Products that cast their A. The heaviest of each size have what else takes registers: loads of
// single elements, quotients, a bias, sums that threads store.
inline void add_casting(Kernels& kernels) {
  const GemmProblem usual = cast_problem(16, 4096, 4096);
  add_tilings(kernels, usual);
  for (const DType type : {kFloat32, kFloat16}) {
    GemmProblem heavy = usual;
    heavy.dynamic = {.exists = true,
                     .type = type,
                     .rule = config::kVllmPerTokenRule,
                     .power_of_two = true,
                     .saturate = false,
                     .vectors = false};
    heavy.product.form.a.type = kE5M2;
    heavy.product.form.bias = Addend::kFloat32;
    heavy.output_fits_tma = false;
    add_if(kernels, heavy, [](const auto& config) { return config.blocks_per_multiprocessor > 2; });
  }
  for (const config::CastRuleRow& row : config::kCastRules) {
    GemmProblem problem = usual;
    problem.dynamic.rule = row.value;
    problem.dynamic.power_of_two = row.value.power_of_two_by_default;
    add(kernels, problem);
  }
}

inline void add_gated(Kernels& kernels) {
  GemmProblem gated = gated_problem(4096, 4096, 4096);
  for (const config::CastRuleRow& row : config::kCastRules) {
    for (const bool power_of_two : {false, true}) {
      gated.gated.rule = row.value;
      gated.gated.power_of_two = power_of_two;
      add(kernels, gated);
    }
  }
  gated = gated_problem(4096, 4096, 4096);
  for (const Activation activation : {Activation::kSwiGlu, Activation::kGeGluTanh,
                                      Activation::kGeGluErf, Activation::kSwiGluOss}) {
    gated.gated.activation = activation;
    add_tilings(kernels, gated);
  }
}

// A product of 32 groups, or of rows that arrive.
inline GemmProblem in_work(Work work, Granularity a = kBlock1x128, Granularity b = kBlock128x128,
                           DType out = kBFloat16, Addend c = Addend::kNone,
                           Addend bias = Addend::kNone) {
  GemmProblem problem = grouped_problem(work, 8192, 4096, 4096, 32, 256);
  if (!config::has_groups(work)) problem.groups = 1, problem.expected = 0;
  problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .out = out, .c = c, .bias = bias};
  return problem;
}

// The heaviest: a factor of each element, everything is added, by threads that read it.
inline void add_arriving(Kernels& kernels) {
  add_tilings(kernels, in_work(Work::kArrivingRows));
  for (const Granularity b : {kBlock1x128, kChannel}) {
    GemmProblem added =
        in_work(Work::kArrivingRows, kBlock1x128, b, kFloat32, Addend::kFloat32, Addend::kFloat32);
    added.c_fits_tma = b == kChannel;
    add_tilings(kernels, added);
  }
  for (const bool words : {true, false}) {
    GemmProblem copied = in_work(Work::kArrivingRows, kChannel, kChannel);
    copied.operands_fit_tma = false;
    copied.operands_fit_words = words;
    add_tilings(kernels, copied);
  }
  GemmProblem fast = in_work(Work::kArrivingRows, kChannel, kChannel);
  fast.product.form.fast_accumulation = true;
  add(kernels, fast);
}

inline void add_groups_of_rows(Kernels& kernels) {
  constexpr Work kRows = Work::kGroupedRows;
  add_tilings(kernels, in_work(Work::kMaskedRows));
  // A's squares are read row by row; everything is added.
  add_tilings(kernels, in_work(kRows, kBlock128x128, kBlock128x128, kFloat32, Addend::kFloat32,
                               Addend::kFloat32));
  GemmProblem fast =
      in_work(kRows, kChannel, kChannel, kBFloat16, Addend::kNone, Addend::kOutputType);
  fast.product.form.fast_accumulation = true;
  add_tilings(kernels, fast);
  GemmProblem gated = in_work(kRows, kBlock1x128, kBlock128x128, kE4M3);
  gated.gated.exists = true;
  add_tilings(kernels, gated);
  GemmProblem unaligned = in_work(kRows);
  add_tilings(kernels, unaligned);
  for (const auto fits : {&GemmProblem::output_fits_tma, &GemmProblem::operands_fit_tma,
                          &GemmProblem::operands_fit_words}) {
    unaligned.*fits = false;
    add_tilings(kernels, unaligned);
  }
}

inline void add_groups_of_depth(Kernels& kernels) {
  for (const Granularity b : {kBlock1x128, kBlock128x128, kChannel}) {
    GemmProblem in_place =
        in_work(Work::kGroupedDepth, kBlock1x128, b, kFloat32, Addend::kOutputType);
    in_place.c_is_out = true;
    add_tilings(kernels, in_place);
  }
  add_tilings(kernels, in_work(Work::kGroupedDepth, kTensor, kTensor));
  for (const Work work : {Work::kGroupedRows, Work::kGroupedDepth}) {
    add_if(kernels, in_work(work, kBlock1x128, kBlock1x128, kFloat32, Addend::kOutputType),
           prefetches_c);
  }
}
// Products by warps: every tile with the form that has most registers, all scales, C and bias; the
// largest tile of each pair of granularities; each way to load.
inline void add_by_warps(Kernels& kernels) {
  constexpr auto kOutput = Addend::kOutputType, kWide = Addend::kFloat32;
  add(kernels,
      {.product = {.form = {.a = {.scales = kBlock1x128},
                            .b = {.type = kE5M2, .scales = kBlock1x128},
                            .out = kFloat32,
                            .c = kWide,
                            .bias = kWide}}},
      Take::kAll);
  GemmProblem problem{.product = {.m = 8192, .n = 8192, .k = 8192}};
  add(kernels, problem);
  for (const auto fits : {&GemmProblem::operands_fit_tma, &GemmProblem::operands_fit_words}) {
    problem.*fits = false;
    add(kernels, problem);
  }
  for (const auto& [a, b] : combinations(kGranularities, kGranularities)) {
    problem = {.product = {.m = 8192, .n = 8192, .k = 8192}};
    problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .c = kOutput, .bias = kOutput};
    add(kernels, problem);
    add(kernels, in_work(Work::kGroupedRows, a, b, kBFloat16, kOutput, kOutput));
    add(kernels, in_work(Work::kGroupedDepth, a, b, kFloat32));
  }
  for (const Granularity scales : {kTensor, kChannel}) {
    problem.product.form = {
        .a = {kE5M2, scales}, .b = {kE4M3, scales}, .out = kFloat16, .fast_accumulation = true};
    add(kernels, problem);
  }
  for (const auto& [work, c, bias] : {std::tuple{Work::kGroupedRows, kWide, kWide},
                                      {Work::kMaskedRows, Addend::kNone, kWide},
                                      {Work::kGroupedDepth, kWide, Addend::kNone}}) {
    add(kernels, in_work(work, kBlock1x128, kBlock1x128, kFloat32, c, bias), Take::kAll);
  }
  problem = in_work(Work::kGroupedRows, kBlock128x128, kBlock128x128, kFloat16);
  add(kernels, problem);
  for (const auto fits : {&GemmProblem::operands_fit_tma, &GemmProblem::operands_fit_words}) {
    problem.*fits = false;
    add(kernels, problem);
  }
  problem = in_work(Work::kGroupedRows, kChannel, kChannel);
  problem.product.form.fast_accumulation = true;
  add(kernels, problem);
}

inline void add_gated_by_warps(Kernels& kernels) {
  GemmProblem gated = gated_problem(4096, 4096, 4096);
  for (const auto& [rule, out] : combinations(
           std::array{config::kDeepSeekRule, config::kTorchAoRule, config::kCompressedTensorsRule},
           std::array{kE4M3, kE5M2})) {
    gated.product.form.b.type = gated.product.form.out = out;
    gated.gated.rule = rule;
    gated.gated.power_of_two = out == kE5M2;
    gated.gated.saturate = out == kE4M3;
    add(kernels, gated);
  }
  gated = gated_problem(4096, 4096, 4096);
  for (const Activation activation :
       {Activation::kGeGluTanh, Activation::kGeGluErf, Activation::kSwiGlu}) {
    gated.gated.activation = activation;
    add(kernels, gated, Take::kAll);
  }
  gated.work = Work::kGroupedRows;
  gated.groups = 32, gated.expected = 256;
  add(kernels, gated, Take::kAll);
}

}  // namespace octofold::test::products
