// From a GEMM problem to the kernel that computes it. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/config/gemm_config.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// All that a plan depends on. The operands' alignment enters as yes or no, so that problems that
/// differ in addresses only share a plan.
struct GemmProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType a = DType::kE4M3;
  DType b = DType::kE4M3;
  DType out = DType::kBFloat16;
  config::GemmScaling scaling = config::GemmScaling::kBlock;
  config::Addend c = config::Addend::kNone;
  config::Addend bias = config::Addend::kNone;
  bool fast_accumulation = false;
  /// Whether address and row stride of A and of B, and those of D, are multiples of 16 bytes.
  bool operands_fit_tma = true;
  bool output_fits_tma = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("m", m);
    field("n", n);
    field("k", k);
    field("a", a);
    field("b", b);
    field("out", out);
    field("scaling", scaling);
    field("c", c);
    field("bias", bias);
    field("fast_accumulation", fast_accumulation);
    field("operands_fit_tma", operands_fit_tma);
    field("output_fits_tma", output_fits_tma);
  }
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

/// One kernel.
using GemmPlan = Plan<config::GemmConfig>;

/// m, n > 0. Throws Error(kUnsupported) for sizes of 2^31 and more, and for a GPU without kernels.
GemmPlan plan_gemm(const GemmProblem& problem, const Gpu& gpu);

/// Every configuration that plan_gemm can choose for problems that differ from this one in sizes
/// only: for tests, and for filling the cache.
std::vector<config::GemmConfig> all_gemm_configs(const GemmProblem& problem);

/// Throws Error(kUnsupported), with what the GPU is and what there is instead, where no GEMM kernel
/// runs on it.
void require_gemm_support(const Gpu& gpu);

/// The header and the name of the kernel.
inline constexpr const char* kGemmHeader = "kernels/sm90/gemm.h";
inline constexpr const char* kGemmKernel = "gemm_kernel";

}  // namespace octofold::plan
