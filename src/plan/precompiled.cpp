#include "plan/precompiled.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "plan/cast.h"
#include "plan/gpu.h"
#include "plan/norm.h"
#include "plan/product.h"
#include "plan/routing.h"
#include "plan/small.h"
#include "plan/tuning.h"

namespace octofold::plan {
namespace {

using config::CastFormat;
using config::CastSource;
using config::SourceKind;
using config::Work;

struct Weight {
  std::int64_t n, k;
};

// DeepSeek-V3's; of Llama and others with 4096, 5120 and 8192 features. Others of such sizes take
// the same kernels.
constexpr Weight kWeights[] = {
    {2112, 7168},   {24'576, 1536}, {32'768, 512},  {7168, 16'384}, {4096, 7168},  {7168, 2048},
    {6144, 4096},   {4096, 4096},   {28'672, 4096}, {4096, 14'336}, {5120, 5120},  {13'824, 5120},
    {5120, 13'824}, {10'240, 8192}, {8192, 8192},   {57'344, 8192}, {8192, 28'672}};

// Experts' first weights, gates and ups, and second ones: of DeepSeek-V3, Qwen3 and Mixtral.
struct Experts {
  std::int64_t count, hidden, features;
};
constexpr Experts kExperts[] = {{256, 2048, 7168}, {32, 2048, 7168}, {128, 768, 2048},
                                {128, 1536, 4096}, {16, 1536, 4096}, {8, 14'336, 4096}};

// Sizes of a batch: with few rows each may have a kernel of its own.
std::vector<std::int64_t> batches() {
  std::vector<std::int64_t> rows;
  for (std::int64_t m = 1; m <= 16'384; m += m < 64 ? 1 : m < 1024 ? 8 : m / 4) rows.push_back(m);
  rows.push_back(16'384);
  return rows;
}

constexpr CastFormat kFormats[] = {{.rule = config::kDeepGemmRule}, {.rule = config::kTorchAoRule}};

class Kernels {
 public:
  explicit Kernels(const Gpu& gpu) : gpu_(gpu) {
    for (const std::string_view name : kTunedGpus) tables_.push_back(shipped_tuning(gpu, name));
  }

  template <typename Plan>
  void add(const Plan& plan) {
    for (const KernelPlan& kernel : plan.kernels) {
      if (names_.insert(kernel.kernel).second) kernels_.push_back(kernel);
    }
  }
  // Adds the planner's choice, and those of the tables.
  void add_product(const GemmProblem& given) {
    const GemmProblem problem = as_allocated(given);
    add(plan_product(problem, gpu_));
    for (const Tuning& table : tables_) {
      const std::string_view name = table.candidate(problem);
      if (!name.empty()) add(plan_product(problem, gpu_, name));
    }
  }
  const Gpu& gpu() const { return gpu_; }
  std::vector<KernelPlan> all() && { return std::move(kernels_); }

 private:
  Gpu gpu_;
  std::vector<Tuning> tables_;
  std::unordered_set<std::string> names_;
  std::vector<KernelPlan> kernels_;
};

// Without a bias: few large models have one, and a kernel compiles in a fifth of a second.
void add_products(Kernels& kernels) {
  constexpr std::pair<Granularity, Granularity> kScales[] = {
      {Granularity::kBlock1x128, Granularity::kBlock128x128},
      {Granularity::kChannel, Granularity::kChannel},
      {Granularity::kTensor, Granularity::kTensor}};
  for (const auto& [a, b] : kScales) {
    const GemmForm form{.a = {.scales = a}, .b = {.scales = b}};
    for (const auto& [n, k] : kWeights) {
      for (const std::int64_t m : batches()) {
        kernels.add_product({.product = {m, n, k, form}});
      }
    }
  }
}

// A product of groups of `rows` rows each, without a bias.
GemmProblem product_of_groups(Work work, const Experts& experts, std::int64_t rows, Weight weight) {
  GemmProblem problem{.product = {.m = rows, .n = weight.n, .k = weight.k}};
  if (work == Work::kGroupedRows) problem.product.m *= experts.count;
  problem.work = work;
  problem.groups = experts.count;
  problem.expected = rows;
  return problem;
}

void add_experts(Kernels& kernels) {
  for (const Experts& experts : kExperts) {
    const Weight first{2 * experts.hidden, experts.features};
    const Weight second{experts.features, experts.hidden};
    for (const std::int64_t rows : batches()) {
      for (const Work work : {Work::kGroupedRows, Work::kMaskedRows}) {
        for (const Weight weight : {first, second}) {
          kernels.add_product(product_of_groups(work, experts, rows, weight));
        }
      }
      for (const CastFormat& format : kFormats) {
        GemmProblem gated = product_of_groups(Work::kGroupedRows, experts, rows,
                                              {experts.hidden, experts.features});
        gated.product.form.out = format.out;
        gated.gated = {.exists = true, .rule = format.rule};
        kernels.add_product(gated);
      }
    }
  }
}

// Adds casts of a norm's results: the kernel follows the length of a row.
void add_norms(Kernels& kernels, const CastFormat& format, std::int64_t rows, std::int64_t cols) {
  for (const bool adds_residual : {false, true}) {
    kernels.add(plan_norm({.rows = rows,
                           .cols = cols,
                           .form = {.weight = config::NormOperand::kInputType},
                           .adds_residual = adds_residual,
                           .format = format},
                          kernels.gpu()));
  }
}

// Adds the casts between products: casts as they are, of an activation, of a norm.
void add_casts(Kernels& kernels) {
  for (const auto& [n, cols] : kWeights) {
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{64}, std::int64_t{4096}}) {
      for (CastFormat format : kFormats) {
        add_norms(kernels, format, rows, cols);
        for (const GranularityRow& row : kGranularityTable) {
          format.granularity = row.granularity;
          kernels.add(plan_cast({.rows = rows, .cols = cols, .format = format}, kernels.gpu()));
          if (!format.scales_lines()) continue;  // of the inputs of products
          CastProblem activation{.rows = rows, .cols = 2 * cols, .format = format};
          activation.source =
              CastSource::of(SourceKind::kActivation, Activation::kSwiGlu, GateLayout::kHalves);
          kernels.add(plan_cast(activation, kernels.gpu()));
        }
      }
    }
    kernels.add(plan_transpose({.rows = n, .cols = cols}, kernels.gpu()));
  }
}

void add_routing(Kernels& kernels) {
  constexpr std::int64_t kTokens = 1024;
  const TopKProblem choices[] = {{.experts = 256,
                                  .slots = 8,
                                  .groups = 8,
                                  .in = DType::kFloat32,
                                  .scoring = Scoring::kSigmoid,
                                  .biased = true},
                                 {.experts = 128, .slots = 8, .in = DType::kBFloat16},
                                 {.experts = 8, .slots = 2, .in = DType::kBFloat16}};
  for (TopKProblem choice : choices) {
    for (const std::int64_t tokens : {std::int64_t{1}, kTokens}) {
      choice.tokens = tokens;
      kernels.add(plan_top_k(choice, kernels.gpu()));
      kernels.add(
          plan_sort({.slots = tokens * choice.slots, .experts = choice.experts}, kernels.gpu()));
    }
  }
  for (const Experts& experts : kExperts) {
    kernels.add(plan_combine({.tokens = kTokens, .cols = experts.features}, kernels.gpu()));
  }
}

}  // namespace

std::vector<KernelPlan> precompiled_kernels(const Gpu& gpu) {
  Kernels kernels(gpu);
  add_products(kernels);
  add_experts(kernels);
  add_casts(kernels);
  add_routing(kernels);
  return std::move(kernels).all();
}

}  // namespace octofold::plan
