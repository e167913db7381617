// From the problem of a product to the kernel that computes it. Each architecture whose products
// have kernels of their own has a planner, in a folder of its own; which one plans for a GPU is
// asked in one place. Pure: no CUDA, no memory, no state.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/mma/config/gemm.h"
#include "kernels/sm90/config/gemm.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"
#include "plan/product.h"

namespace octofold::plan {

/// The configuration of the kernel of any of the architectures.
using ProductConfig = std::variant<config::Sm90GemmConfig, config::MmaGemmConfig>;

/// One kernel.
using ProductPlan = Plan<ProductConfig>;

/// A configuration that can be chosen for problems that differ from this one in sizes only.
struct ProductCandidate {
  std::string name;  ///< "64x16.swapped.w1.c1x1x2.b3": octofold/tuning.h
  ProductConfig config;
};

/// The planner that the folder of an architecture brings.
class ProductPlanner {
 public:
  ProductPlanner() = default;
  ProductPlanner(const ProductPlanner&) = delete;
  ProductPlanner& operator=(const ProductPlanner&) = delete;
  virtual ~ProductPlanner() = default;

  /// Throws Error(kUnsupported) for sizes or numbers of tiles near 2^31 and more.
  virtual void require_sizes(const GemmProblem& problem) const = 0;
  /// All configurations, each once.
  virtual std::vector<ProductCandidate> candidates(const GemmProblem& problem,
                                                   const Gpu& gpu) const = 0;
  /// The one that is reckoned to be the fastest.
  virtual ProductConfig choose(const GemmProblem& problem, const Gpu& gpu) const = 0;
  /// Its kernel, and how that is launched.
  virtual KernelPlan kernel(const GemmProblem& problem, const ProductConfig& config,
                            const Gpu& gpu) const = 0;
};

/// The plan that is reckoned to be the fastest, or, where `candidate` names one, that one. Of a
/// gated product the operands have to fit TMA, and its columns are whole tiles; so does the B of an
/// A that is cast, and the operands whose K is in groups.
///
/// Throws Error: kUnsupported for a GPU without kernels, and for sizes or numbers of tiles near
/// 2^31 and more; kInvalidArgument, which lists the candidates, where there is none of this name.
ProductPlan plan_product(const GemmProblem& problem, const Gpu& gpu,
                         std::string_view candidate = {});

/// All configurations, each once: for tests, tuning, and filling the cache. Throws
/// Error(kUnsupported) for a GPU without kernels.
std::vector<ProductCandidate> product_candidates(const GemmProblem& problem, const Gpu& gpu);

/// The name of the configuration that plan_product() chooses.
std::string planned_candidate(const GemmProblem& problem, const Gpu& gpu);

}  // namespace octofold::plan
