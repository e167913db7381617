#include <algorithm>
#include <fmt/ranges.h>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octofold/batch_invariant.h"
#include "octofold/error.h"
#include "octofold/kernel_cache.h"
#include "octofold/tuning.h"

#include "core/check.h"
#include "core/format.h"
#include "core/options.h"
#include "cuda/device.h"
#include "cuda/kernel_headers.h"
#include "cuda/precompiled_kernels.h"
#include "cuda/tuning_file.h"
#include "jit/kernel_cache.h"
#include "jit/nvrtc.h"
#include "ops/product.h"
#include "plan/product.h"
#include "plan/tuning.h"

namespace octofold {
namespace {

// A GPU that is planned for without one at hand. Throws Error in the name of `operation`:
// kUnsupported for an architecture without products, kInvalidArgument for fewer than 2
// multiprocessors.
plan::Gpu target_gpu(std::string_view operation, std::string_view architecture,
                     std::int32_t multiprocessors) {
  if (multiprocessors < 2) {  // a cluster's blocks run on as many
    core::fail_argument(operation, "multiprocessors", "at least 2",
                        core::format("{}", multiprocessors));
  }
  std::vector<std::string> names;
  for (const int capability : {90, 89, 120, 121}) {  // of products
    const plan::Gpu gpu = plan::gpu_of(capability, multiprocessors);
    names.push_back(plan::architecture(gpu));
    if (names.back() == architecture) return gpu;
  }
  core::fail(ErrorCode::kUnsupported,
             "{}: there are no products for the architecture '{}', only for {}", operation,
             architecture, fmt::join(names, ", "));
}

// Throws Error(kInvalidArgument), in the name of `operation`, for a form that gemm() has not.
void require_form(std::string_view operation, const GemmForm& form) {
  const core::Arguments check(operation);
  const auto require = [&](std::string_view field, DType dtype,
                           std::initializer_list<DType> dtypes) {
    check.require_dtype(field, {.dtype = dtype}, dtypes);
  };
  require("a", form.a.type, {DType::kE4M3, DType::kE5M2});
  require("b", form.b.type, {DType::kE4M3, DType::kE5M2});
  require("out", form.out, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  check.require_enumerator("a.granularity", form.a.scales);
  check.require_enumerator("b.granularity", form.b.scales);
  ops::require_accumulation(check, form.a.scales, form.b.scales, form.fast_accumulation);
  if (form.b_channel_scale && form.b.scales != Granularity::kBlock128x128) {
    check.fail("b_channel_scale", "false, except for 128x128 scales of b", "true");
  }
}

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
    require_form(kWarm, problem.form);
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
      programs_of(problems, target_gpu(kWarm, options.architecture, options.multiprocessors));
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

TuningTable tuning_table(const GpuInfo& gpu) try {
  const plan::Gpu target = plan::as_target({.compute_major = gpu.compute_major,
                                            .compute_minor = gpu.compute_minor,
                                            .multiprocessors = gpu.multiprocessors},
                                           core::options().target);
  const cuda::TuningFile read = cuda::read_tuning(target, gpu.name);
  return {.file = read.file,
          .fault = read.fault,
          .products = static_cast<std::int64_t>(read.tuning.size()),
          .shipped = core::options().uses_tuning
                         ? static_cast<std::int64_t>(plan::shipped_tuning(target, gpu.name).size())
                         : 0};
} catch (const Error& error) {  // a target that is none of this GPU's
  return {.fault = error.what()};
}

namespace {

void require_groups(std::string_view operation, std::int64_t groups) {
  if (groups < 1) {
    core::fail_argument(operation, "groups", "at least 1", core::format("{}", groups));
  }
}

// Throws what the operation would, but for what only sizes decide.
plan::GemmProblem checked(std::string_view operation, const ProductProblem& problem) {
  GemmForm form = problem.product.form;
  if (problem.gated) form.out = DType::kBFloat16;
  require_form(operation, form);
  require_groups(operation, problem.groups);
  if (problem.gated && !is_gated(*problem.gated)) {
    core::fail_argument(operation, "gated", "a gated activation", name(*problem.gated));
  }
  return plan::problem_of(problem);
}

plan::WeightOnlyProblem checked(std::string_view operation, const WeightOnlyProblem& problem) {
  if (problem.grouping == Grouping::kDepth) {
    core::fail_argument(operation, "grouping", "none, rows or masked", "depth");
  }
  require_groups(operation, problem.groups);
  if (problem.gathered && problem.grouping != Grouping::kRows) {
    core::fail_argument(operation, "gathered", "false but for groups of rows", "true");
  }
  const bool is_masked = problem.grouping == Grouping::kMasked;
  return plan::contiguous({.rows = problem.m,
                           .columns = problem.n,
                           .depth = problem.k,
                           .w = problem.w.type,
                           .x = problem.x,
                           .out = problem.out,
                           .transposed = problem.gradient,
                           .w_scales = problem.w.scales,
                           .work = plan::work_of(problem.grouping),
                           .groups = problem.groups,
                           .expected = is_masked ? problem.expected_rows.value_or(problem.m) : 0,
                           .gathered = problem.gathered,
                           .batch_invariant = problem.batch_invariant});
}

plan::Gpu gpu_of(std::string_view operation, const TargetGpu& gpu) {
  return target_gpu(operation, gpu.architecture, gpu.multiprocessors);
}

}  // namespace

std::vector<std::string> product_candidates(const ProductProblem& given,
                                            const TensorAlignment& alignment,
                                            const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "product_candidates";
  plan::GemmProblem problem = checked(kOperation, given);
  problem.operands_fit_tma = alignment.operands;
  problem.output_fits_tma = alignment.out;
  problem.c_fits_tma = alignment.c;
  std::vector<std::string> names;
  for (auto& [name, config] : plan::product_candidates(problem, gpu_of(kOperation, gpu))) {
    names.push_back(std::move(name));
  }
  return names;
}

std::string planned_candidate(const ProductProblem& problem, const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "planned_candidate";
  return plan::planned_candidate(checked(kOperation, problem), gpu_of(kOperation, gpu));
}

std::string tuning_key(const ProductProblem& problem) {
  return plan::tuning_key(checked("tuning_key", problem));
}

std::vector<std::string> product_candidates(const WeightOnlyProblem& given, const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "product_candidates";
  const plan::WeightOnlyProblem problem = checked(kOperation, given);
  std::vector<std::string> names;
  for (auto& [name, choice] : plan::weight_only_candidates(problem, gpu_of(kOperation, gpu))) {
    names.push_back(std::move(name));
  }
  return names;
}

std::string planned_candidate(const WeightOnlyProblem& given, const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "planned_candidate";
  return plan::planned_candidate(checked(kOperation, given), gpu_of(kOperation, gpu));
}

std::string tuning_key(const WeightOnlyProblem& problem) {
  return plan::tuning_key(checked("tuning_key", problem));
}

}  // namespace octofold
