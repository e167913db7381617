#include "octofold/kernel_cache.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <fmt/ranges.h>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/format.h"
#include "core/options.h"
#include "cuda/device.h"
#include "cuda/kernel_headers.h"
#include "jit/kernel_cache.h"
#include "jit/nvrtc.h"
#include "ops/gemm.h"
#include "plan/gemm.h"
#include "plan/mma_gemm.h"

namespace octofold {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOperation = "warm_kernel_cache";

jit::KernelCache cache() { return jit::KernelCache(core::options().cache_folder); }

plan::Gpu gpu_of(const WarmOptions& options) {
  if (options.multiprocessors < 2) {  // a cluster's blocks run on as many
    core::fail_argument(kOperation, "multiprocessors", "at least 2",
                        core::format("{}", options.multiprocessors));
  }
  std::vector<std::string> names;
  for (const int capability : {90, 89, 120, 121}) {  // of products
    const plan::Gpu gpu = plan::gpu_of(capability, options.multiprocessors);
    names.push_back(plan::architecture(gpu));
    if (names.back() == options.architecture) return gpu;
  }
  core::fail(ErrorCode::kUnsupported,
             "{}: no products for the architecture '{}': there are some for {}", kOperation,
             options.architecture, fmt::join(names, ", "));
}

// Each kernel once, in the order of the problems.
std::vector<jit::Program> programs_of(std::span<const GemmProblem> problems, const plan::Gpu& gpu) {
  std::vector<jit::Program> programs;
  for (const GemmProblem& problem : problems) {
    if (std::min(problem.m, problem.n) < 1 || problem.k < 0) {
      core::fail_argument(kOperation, "problems", "M and N of at least 1, K of at least 0",
                          core::format("{}×{}×{}", problem.m, problem.n, problem.k));
    }
    ops::require_form(kOperation, problem.form);
    plan::GemmProblem planned = plan::contiguous(problem);
    const bool may_add_in_place =
        problem.form.out == DType::kFloat32 && problem.form.c != Addend::kNone;
    for (const bool c_is_out : {false, true}) {
      if (c_is_out && !may_add_in_place) continue;
      planned.c_is_out = c_is_out;
      const plan::KernelPlan kernel = plan::multiplies_by_warps(gpu)
                                          ? plan::plan_mma_gemm(planned, gpu).kernels.front()
                                          : plan::plan_gemm(planned, gpu).kernels.front();
      jit::Program program = cuda::program_of(kernel, gpu);
      if (std::ranges::find(programs, program.kernel, &jit::Program::kernel) == programs.end()) {
        programs.push_back(std::move(program));
      }
    }
  }
  return programs;
}

// Elsewhere a cache that cannot be written costs time only; here it is all that matters.
void compile_and_keep(const jit::Program& program) {
  jit::compile_cached(program, cuda::kernel_headers());
  if (jit::is_cached(program, cuda::kernel_headers())) return;
  core::fail(ErrorCode::kIo, "{}: kernels cannot be kept in '{}'", kOperation,
             kernel_cache_folder().string());
}

// By as many threads as one operation may have: kernels do not wait for each other.
class Compilation {
 public:
  explicit Compilation(std::span<const jit::Program> programs) : programs_(programs) {}

  /// tell(kernels done) is called by this thread. What it throws, or a kernel, ends the run: no
  /// other kernel is begun.
  template <typename Tell>
  WarmReport run(Tell&& tell) {
    const std::size_t threads =
        std::min(programs_.size(), static_cast<std::size_t>(core::options().num_threads));
    std::vector<std::jthread> workers;  // joined when it ends, however that is
    const Stop stop{*this};
    for (std::size_t i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    for (std::size_t told = 0; told < programs_.size();) {
      told = wait_for_more_than(told);
      tell(static_cast<std::int64_t>(told));
    }
    return report_;
  }

 private:
  // Declared after the workers, so that they are told to stop before they are joined.
  struct Stop {
    Compilation& compilation;
    ~Stop() { compilation.next_ = compilation.programs_.size(); }
  };

  void work() {
    for (std::size_t i = next_++; i < programs_.size(); i = next_++) {
      bool found = false;
      std::exception_ptr fault;
      try {
        found = jit::is_cached(programs_[i], cuda::kernel_headers());
        if (!found) compile_and_keep(programs_[i]);
      } catch (...) {
        fault = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (fault) {
        fault_ = fault;
      } else {
        ++(found ? report_.found : report_.compiled);
      }
      changed_.notify_one();
      if (fault) return;
    }
  }

  std::size_t wait_for_more_than(std::size_t told) {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return static_cast<std::size_t>(report_.found + report_.compiled); };
    changed_.wait(lock, [&] { return fault_ || done() > told; });
    if (fault_) std::rethrow_exception(fault_);
    return done();
  }

  std::span<const jit::Program> programs_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  WarmReport report_;
  std::exception_ptr fault_;
};

CachedKernel described(jit::KernelCache::Listed&& listed) {
  CachedKernel kernel{.file = std::move(listed.file),
                      .bytes = static_cast<std::int64_t>(listed.bytes),
                      .written = std::chrono::file_clock::to_sys(listed.written),
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

WarmReport warm_kernel_cache(std::span<const GemmProblem> problems, const WarmOptions& options) {
  const std::vector<jit::Program> programs = programs_of(problems, gpu_of(options));
  if (kernel_cache_folder().empty()) {
    core::fail(ErrorCode::kUnavailable,
               "{}: there is no folder to keep kernels in: name one in OCTOFOLD_CACHE_DIR",
               kOperation);
  }
  const auto total = static_cast<std::int64_t>(programs.size());
  const auto tell = [&](std::int64_t done) {
    if (options.progress) options.progress(done, total);
  };
  tell(0);
  return Compilation(programs).run(tell);
}

void set_nvrtc_candidates(std::vector<std::string> files) {
  jit::set_nvrtc_candidates(std::move(files));
}

}  // namespace octofold
