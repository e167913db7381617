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
  bool on_12 = false;  // and 12.x, which multiplies as 8.9 does
  int oldest_of_bfloat16 = 0;
};

constexpr Row row_of(Operation operation) {
  constexpr std::string_view kHopperOnly = "9.0 (H100, H200)";
  constexpr std::string_view kWithFp8 = "8.9, 9.0 or 12.x";
  constexpr std::string_view kHalves = "7.5 or later (bfloat16: 8.0)";
  switch (operation) {
    case Operation::kCast: return {"casts", 75, 0, "7.5 or later"};
    case Operation::kNorm: return {"norms", 75, 0, "7.5 or later"};
    case Operation::kRotary: return {"rotary embeddings", 75, 0, "7.5 or later"};
    case Operation::kRouting: return {"routing", 75, 0, "7.5 or later"};
    case Operation::kDot: return {"dot products", 75, 0, "7.5 or later"};
    case Operation::kWeightOnly: return {"products with FP8 weights", 75, 0, kHalves, false, 80};
    case Operation::kAttention: return {"attention", 75, 0, kHalves, false, 80};
    case Operation::kProduct: return {"products", 89, 90, kWithFp8, true};
    case Operation::kGroupedProduct: return {"grouped products", 89, 90, kWithFp8, true};
    case Operation::kGatedProduct: return {"gated products", 89, 90, kWithFp8, true};
    case Operation::kDynamicProduct: return {"products that cast A", 90, 90, kHopperOnly};
  }
  return {};
}

void require(std::string_view called, const std::string& reason) {
  if (reason.empty()) return;
  core::fail(ErrorCode::kUnsupported,
             "{}: {}; the CPU backend takes the same tensors in host memory", called, reason);
}

}  // namespace

std::string_view word(Operation operation) { return row_of(operation).word; }

std::string why_not(Operation operation, const Gpu& gpu) {
  const Row row = row_of(operation);
  const int capability = gpu.compute_capability();
  if (capability >= row.oldest && (row.newest == 0 || capability <= row.newest)) return "";
  if (row.on_12 && gpu.compute_major == 12) return "";
  const bool is_data_center_blackwell =
      row.newest != 0 && (gpu.compute_major == 10 || gpu.compute_major == 11);
  return core::format("expected a GPU of compute capability {}, got {}.{}{}", row.needs,
                      gpu.compute_major, gpu.compute_minor,
                      is_data_center_blackwell
                          ? ", for whose FP8 instructions (tcgen05) there are no kernels"
                          : "");
}

std::string why_not_bfloat16(Operation operation, const Gpu& gpu) {
  const int oldest = row_of(operation).oldest_of_bfloat16;
  if (gpu.compute_capability() >= oldest) return "";
  return core::format(
      "expected a GPU of compute capability {}.{} or later for products of bfloat16, got {}.{}; "
      "float16 works there",
      oldest / 10, oldest % 10, gpu.compute_major, gpu.compute_minor);
}

void require_kernels(Operation operation, std::string_view called, const Gpu& gpu) {
  require(called, why_not(operation, gpu));
}

void require_kernels(Operation operation, std::string_view called, DType type, const Gpu& gpu) {
  require_kernels(operation, called, gpu);
  if (type == DType::kBFloat16) require(called, why_not_bfloat16(operation, gpu));
}

}  // namespace octofold::plan
