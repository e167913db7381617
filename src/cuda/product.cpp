#include "plan/product.h"

#include <string_view>
#include <variant>

#include "core/check.h"
#include "core/log.h"
#include "cuda/backend.h"
#include "cuda/fastest.h"
#include "cuda/group_check.h"
#include "cuda/params.h"

namespace octofold::cuda {
namespace {

using config::Work;

// The advice for operands that no kernel of this product takes; null: there are kernels for any.
const char* instead_of(const core::Product& product) {
  if (product.gated) return ": gemm() and a cast of its activation take it";
  if (product.cast_a) return ": a cast of 'a' and gemm() of its codes take it";
  return product.groups.work == Work::kGroupedDepth ? "" : nullptr;
}

// Throws for what no kernel takes, whichever GPU it is.
void require_operands(const core::Product& product, const plan::GemmProblem& problem) {
  const char* const instead = instead_of(product);
  if (instead == nullptr) return;
  const std::string_view operation = plan::operation_of(problem);
  if (product.gated && problem.product.n % kScaleBlock != 0) {
    core::fail(ErrorCode::kUnsupported,
               "{}: argument 'b': expected 2·N rows with N a multiple of {} on a GPU, because no "
               "block of scales may have gates and ups, got N = {}{}",
               operation, kScaleBlock, problem.product.n, instead);
  }
  const auto require = [&](std::string_view argument, const char* obstacle) {
    if (obstacle == nullptr) return;
    core::fail(ErrorCode::kUnsupported,
               "{}: argument '{}': expected a matrix that TMA can address on a GPU, but {}{}",
               operation, argument, obstacle, instead);
  };
  const plan::TmaObstacles obstacles = plan::tma_obstacles(product);
  require("a", obstacles.a);
  require("b", obstacles.b);
  if (product.gated) require("out", obstacles.out);
}

// Says which argument keeps a dense product from the fast path, where one does.
void log_obstacles(const core::Product& product, const plan::GemmProblem& problem,
                   const SlowPaths& paths) {
  if (config::has_groups(problem.work) || instead_of(product) != nullptr) return;
  const auto& [m, n, k, form] = problem.product;
  const auto log = [&](std::string_view argument, const char* reason, const char* effect) {
    if (reason == nullptr || effect == nullptr) return;
    core::log(LogLevel::kInfo, "gemm {}×{}×{}: argument '{}': {}: {}, which is slower", m, n, k,
              argument, reason, effect);
  };
  if (k == 0) return;
  const plan::TmaObstacles obstacles = plan::tma_obstacles(product);
  log("a", obstacles.a, paths.operands);
  log("b", obstacles.b, paths.operands);
  log("out", obstacles.out, paths.out);
}

}  // namespace

void multiply(Device& device, const core::Product& product, Stream stream) {
  if (product.out.element_count() == 0) return;
  const plan::GemmProblem problem = plan::problem_of(product);
  const auto plan = [&](std::string_view candidate) {
    require_operands(product, problem);
    return plan::plan_product(problem, device.gpu(), candidate);
  };
  const auto told = [&](const plan::ProductConfig& planned) {
    std::visit([&](const auto& config) { log_obstacles(product, problem, slow_paths(config)); },
               planned);
  };
  auto chosen = choose_kernel(device, problem, product.candidate, stream, plan, told);
  check_groups(device, plan::operation_of(problem), product.groups, stream);
  std::visit(
      [&](const auto& config) {
        const auto params = params_of(device, product, config);
        chosen.launch(stream, &params);
      },
      chosen.config());
}

}  // namespace octofold::cuda
