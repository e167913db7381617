// The result of every planner: the kernels of a problem, and how they are launched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/fields.h"

namespace octofold::plan {

/// One kernel and the shape of its launch: all that it takes to compile, load and queue it.
struct KernelPlan {
  std::string header{};       ///< "kernels/sm90/gemm.h"
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

}  // namespace octofold::plan
