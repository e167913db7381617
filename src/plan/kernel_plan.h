// A planner, which every family has for each architecture, and its result: the kernels of a
// problem, and how they are launched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/fields.h"
#include "plan/gpu.h"

namespace octofold::plan {

/// One kernel and the shape of its launch: all that it takes to compile, load and queue it.
struct KernelPlan {
  std::string header{};       ///< "kernels/sm90/kernel.h"
  std::string kernel{};       ///< the name expression; tells kernels apart
  std::string description{};  ///< one line for logs and errors
  int threads = 0;            ///< of a block
  int cluster_size = 1;       ///< blocks, along x
  int shared_bytes = 0;       ///< of dynamic shared memory
  std::int64_t blocks = 0;    ///< whole clusters
  /// Blocks go on until all is done: no more of them are launched than run at one time.
  bool as_many_as_run = false;
};

/// The kernel `name` of `header` for this configuration.
template <HasFields Config>
KernelPlan kernel_plan(std::string_view operation, std::string_view header, std::string_view name,
                       const Config& config, std::int64_t blocks) {
  return {.header = std::string(header),
          .kernel = kernel_name(name, config),
          .description = core::format("{}: {}", operation, describe(config)),
          .threads = config.threads(),
          .blocks = blocks};
}

/// The kernels of a problem, launched one after another with the same parameters; those may depend
/// on `config`.
template <typename Config>
struct Plan {
  Config config{};
  std::vector<KernelPlan> kernels{};
};

/// The planner that the folder of an architecture brings for a family of problems.
template <typename Problem, typename Config>
class Planner {
 public:
  Planner() = default;
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;
  virtual ~Planner() = default;

  /// The configuration that is reckoned to be the fastest; nothing where the architecture has no
  /// kernel for the problem.
  virtual std::optional<Config> choose(const Problem& problem, const Gpu& gpu) const = 0;
};

/// A configuration that can be chosen for problems that differ from this one in sizes only.
template <typename Config>
struct Candidate {
  std::string name;  ///< "64x16.swapped.w1.c1x1x2.b3": octofold/tuning.h
  Config config;
};

/// A configuration and the time that it is reckoned to take, in a unit of its planner's own.
template <typename Config>
struct Reckoned {
  Config config;
  double time;
};

/// The planner of a family whose configurations have names, by which tables and callers choose.
template <typename Problem, typename Config>
class TunablePlanner : public Planner<Problem, Config> {
 public:
  using Candidates = std::vector<Candidate<Config>>;
  using Reckonings = std::vector<Reckoned<Config>>;

  /// Throws Error(kUnsupported) for sizes that kernels cannot count.
  virtual void require_sizes(const Problem&) const {}
  /// All configurations, each once.
  virtual Candidates candidates(const Problem& problem, const Gpu& gpu) const = 0;
  /// The ones among them that may be the fastest.
  virtual Reckonings reckon(const Problem& problem, const Gpu& gpu) const = 0;
  std::optional<Config> choose(const Problem& problem, const Gpu& gpu) const final {
    const Reckonings all = reckon(problem, gpu);
    if (all.empty()) return {};
    return std::ranges::min_element(all, {}, &Reckoned<Config>::time)->config;
  }
  /// Its kernels, and how they are launched.
  virtual std::vector<KernelPlan> kernels(const Problem& problem, const Config& config,
                                          const Gpu& gpu) const = 0;
};

}  // namespace octofold::plan
