#include "octofold/kernel_cache.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "octofold/batch_invariant.h"

#include "core/check.h"
#include "core/format.h"
#include "core/options.h"
#include "cuda/device.h"
#include "cuda/kernel_headers.h"
#include "cuda/precompiled_kernels.h"
#include "jit/compile_all.h"
#include "jit/kernel_cache.h"
#include "jit/nvrtc.h"
#include "ops/target_gpu.h"
#include "plan/product.h"

namespace octofold {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWarm = "warm_kernel_cache";

jit::KernelCache cache() { return jit::KernelCache(core::options().cache_folder); }

// Libraries differ in the unit of files' times: GCC's and the system's clock count alike, LLVM's
// counts files' in finer ones.
std::chrono::system_clock::time_point system_time(fs::file_time_type time) {
  return std::chrono::time_point_cast<std::chrono::system_clock::duration>(
      std::chrono::file_clock::to_sys(time));
}

// Each kernel once, in the order of the problems.
std::vector<jit::Program> programs_of(std::span<const GemmProblem> problems, const plan::Gpu& gpu) {
  std::vector<jit::Program> programs;
  for (const GemmProblem& problem : problems) {
    if (std::min(problem.m, problem.n) < 1 || problem.k < 0) {
      core::fail_argument(kWarm, "problems", "M and N of at least 1, K of at least 0",
                          core::format("{}×{}×{}", problem.m, problem.n, problem.k));
    }
    ops::require_form(kWarm, problem.form);
    const plan::GemmProblem given{.product = problem, .batch_invariant = is_batch_invariant()};
    const bool may_add_in_place =
        problem.form.out == DType::kFloat32 && problem.form.c != Addend::kNone;
    // Plans for codes that Octofold has cast, and for others, whose rows may have no gaps.
    for (plan::GemmProblem planned : {plan::as_allocated(given), plan::contiguous(given)}) {
      for (const bool c_is_out : {false, true}) {
        if (c_is_out && !may_add_in_place) continue;
        planned.c_is_out = c_is_out;
        jit::Program program =
            cuda::program_of(plan::plan_product(planned, gpu).kernels.front(), gpu);
        if (std::ranges::find(programs, program.kernel, &jit::Program::kernel) == programs.end()) {
          programs.push_back(std::move(program));
        }
      }
    }
  }
  return programs;
}

CachedKernel described(jit::KernelCache::Listed&& listed) {
  CachedKernel kernel{.file = std::move(listed.file),
                      .bytes = static_cast<std::int64_t>(listed.bytes),
                      .written = system_time(listed.written),
                      .fault = std::move(listed.fault)};
  if (listed.entry) {
    kernel.description = std::move(listed.entry->description);
    kernel.architecture = std::move(listed.entry->architecture);
    kernel.registers = listed.entry->binary.resources.registers;
  }
  return kernel;
}

}  // namespace

fs::path kernel_cache_folder() { return core::options().cache_folder; }

std::vector<CachedKernel> list_kernel_cache() {
  std::vector<CachedKernel> kernels;
  for (jit::KernelCache::Listed& listed : cache().list()) {
    kernels.push_back(described(std::move(listed)));
  }
  return kernels;
}

int clear_kernel_cache() { return cache().clear(); }

std::vector<PrecompiledKernel> list_precompiled_kernels() {
  std::vector<PrecompiledKernel> kernels;
  for (jit::CacheEntry& entry : cuda::precompiled_kernels()) {
    kernels.push_back({.bytes = static_cast<std::int64_t>(entry.binary.image.size()),
                       .description = std::move(entry.description),
                       .architecture = std::move(entry.architecture),
                       .registers = entry.binary.resources.registers});
  }
  std::ranges::sort(kernels, {}, &PrecompiledKernel::description);
  return kernels;
}

WarmReport warm_kernel_cache(std::span<const GemmProblem> problems, const WarmOptions& options) {
  const std::vector<jit::Program> programs =
      programs_of(problems, ops::target_gpu(kWarm, options.architecture, options.multiprocessors));
  if (kernel_cache_folder().empty()) {
    core::fail(ErrorCode::kUnavailable,
               "{}: there is no folder to keep kernels in: name one in OCTOFOLD_CACHE_DIR", kWarm);
  }
  std::vector<jit::Program> missing;
  std::ranges::remove_copy_if(programs, std::back_inserter(missing), [](const auto& program) {
    return cuda::precompiled_kernel(program).has_value();
  });
  const auto total = static_cast<std::int64_t>(programs.size());
  const auto precompiled = total - static_cast<std::int64_t>(missing.size());
  const auto tell = [&](std::int64_t done) {
    if (options.progress) options.progress(precompiled + done, total);
  };
  tell(0);
  const auto [compiled, found] = jit::compile_all(missing, cuda::kernel_headers(), tell);
  return {.compiled = compiled, .found = found, .precompiled = precompiled};
}

void set_nvrtc_candidates(std::vector<std::string> files) {
  jit::set_nvrtc_candidates(std::move(files));
}

}  // namespace octofold
