// From a GEMM problem to the kernel that computes it. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/config/gemm_config.h"
#include "plan/gpu.h"

namespace octofold::plan {

/// All that a plan depends on. The operands' alignment enters as yes or no, so that problems that
/// differ in addresses only share a plan.
struct GemmProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  config::Element a = config::Element::kE4M3;
  config::Element b = config::Element::kE4M3;
  config::Element out = config::Element::kBFloat16;
  config::GemmScaling scaling = config::GemmScaling::kBlock;
  config::Addend c = config::Addend::kNone;
  config::Addend bias = config::Addend::kNone;
  bool fast_accumulation = false;
  /// Whether address and row stride of A and of B, and those of D, are multiples of 16 bytes.
  bool operands_fit_tma = true;
  bool output_fits_tma = true;

  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
  /// For hashing.
  auto fields() const {
    return std::tuple(m, n, k, a, b, out, scaling, c, bias, fast_accumulation, operands_fit_tma,
                      output_fits_tma);
  }
};

struct GemmPlan {
  config::GemmConfig config;
  int blocks = 0;  ///< of threads: a multiple of the cluster, as many as run at one time at most
};

/// m, n > 0. Throws Error(kUnsupported) for sizes of 2^31 and more, and for a GPU without kernels.
GemmPlan plan_gemm(const GemmProblem& problem, const Gpu& gpu);

/// Every configuration that plan_gemm can choose for problems that differ from this one in sizes
/// only: for tests, and for filling the cache.
std::vector<config::GemmConfig> all_gemm_configs(const GemmProblem& problem);

/// Throws Error(kUnsupported), with what the GPU is and what there is instead, where no GEMM kernel
/// runs on it.
void require_gemm_support(const Gpu& gpu);

/// The header and the name expression of the kernel: "octofold::gemm_kernel<…{.a = …}>".
inline constexpr const char* kGemmHeader = "kernels/sm90/gemm.h";
std::string gemm_kernel_name(const config::GemmConfig& config);

/// One line for logs and errors: "gemm e4m3 × e4m3 → bfloat16, 1x128 and 128x128 scales, tile
/// 256×128, …".
std::string describe(const config::GemmConfig& config);

}  // namespace octofold::plan
