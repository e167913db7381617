#include "plan/capability.h"

#include "core/check.h"
#include "core/format.h"

namespace octofold::plan {
namespace {

// Compute capabilities, 90 for 9.0, from the oldest to the newest one; 0: to any.
struct Row {
  std::string_view word;
  int oldest;
  int newest;
  std::string_view needs;
};

constexpr Row row_of(Operation operation) {
  switch (operation) {
    case Operation::kCast: return {"casts", 75, 0, "7.5 or later"};
    case Operation::kNorm: return {"norms", 75, 0, "7.5 or later"};
    case Operation::kRouting: return {"routing", 75, 0, "7.5 or later"};
    case Operation::kDot: return {"dot products", 75, 0, "7.5 or later"};
    case Operation::kAttention: return {"attention", 75, 0, "7.5 or later (bfloat16: 8.0)"};
    case Operation::kProduct: return {"products", 90, 90, "9.0 (H100, H200)"};
  }
  return {};
}

}  // namespace

std::string_view word(Operation operation) { return row_of(operation).word; }

std::string why_not(Operation operation, const Gpu& gpu) {
  const Row row = row_of(operation);
  const int capability = gpu.compute_capability();
  if (capability >= row.oldest && (row.newest == 0 || capability <= row.newest)) return "";
  return core::format("expected a GPU of compute capability {}, got {}.{}", row.needs,
                      gpu.compute_major, gpu.compute_minor);
}

void require_kernels(Operation operation, std::string_view called, const Gpu& gpu) {
  const std::string reason = why_not(operation, gpu);
  if (reason.empty()) return;
  core::fail(ErrorCode::kUnsupported,
             "{}: {}; the CPU backend takes the same tensors in host memory", called, reason);
}

}  // namespace octofold::plan
