#include <algorithm>
#include <fmt/ranges.h>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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
#include "plan/problem_text.h"
#include "plan/product.h"
#include "plan/tuning.h"
#include "plan/weight_only.h"

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

// A GPU at hand, as which kernels are planned for it.
plan::Gpu planned_as(const GpuInfo& gpu) {
  return plan::as_target({.compute_major = gpu.compute_major,
                          .compute_minor = gpu.compute_minor,
                          .multiprocessors = gpu.multiprocessors},
                         core::options().target);
}

using Problem = std::variant<plan::GemmProblem, plan::WeightOnlyProblem>;

// The problem as the operation would have it in this process.
Problem problem_of(std::string_view text) {
  Problem problem = plan::parse_problem(text);
  std::visit([](auto& each) { each.batch_invariant |= is_batch_invariant(); }, problem);
  return problem;
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

// The plans that calls of the problem may have.
std::vector<std::vector<plan::KernelPlan>> plans_of(const plan::WeightOnlyProblem& problem,
                                                    const plan::Gpu& gpu) {
  return {plan::plan_weight_only(problem, gpu).kernels};
}

std::vector<std::vector<plan::KernelPlan>> plans_of(const plan::GemmProblem& given,
                                                    const plan::Gpu& gpu) {
  const GemmForm& form = given.product.form;
  const bool may_add_in_place = form.out == DType::kFloat32 && form.c != Addend::kNone;
  std::vector problems{given};
  // Codes that Octofold has not cast may have rows without gaps.
  if (plan::operation_of(given) == "gemm" && !given.dynamic.exists) {
    problems.push_back(plan::contiguous(given));
  }
  std::vector<std::vector<plan::KernelPlan>> plans;
  for (plan::GemmProblem& problem : problems) {
    for (const bool c_is_out : {false, true}) {
      if (c_is_out && !may_add_in_place) continue;
      problem.c_is_out = c_is_out;
      plans.push_back(plan::plan_product(problem, gpu).kernels);
    }
  }
  return plans;
}

// Each kernel once, in the order of the problems.
std::vector<jit::Program> programs_of(std::span<const std::string> problems, const plan::Gpu& gpu) {
  std::vector<jit::Program> programs;
  const auto add = [&](const plan::KernelPlan& kernel) {
    jit::Program program = cuda::program_of(kernel, gpu);
    if (std::ranges::find(programs, program.kernel, &jit::Program::kernel) == programs.end()) {
      programs.push_back(std::move(program));
    }
  };
  for (const std::string& text : problems) {
    const auto plans =
        std::visit([&](const auto& problem) { return plans_of(problem, gpu); }, problem_of(text));
    for (const auto& kernels : plans) std::ranges::for_each(kernels, add);
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

WarmReport warm_kernel_cache(std::span<const std::string> problems, const WarmOptions& options) {
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

fs::path write_choices(const GpuInfo& gpu, std::span<const MeasuredChoice> choices) {
  std::vector<MeasuredChoice> completed(choices.begin(), choices.end());
  for (MeasuredChoice& choice : completed) choice.problem = complete_problem(choice.problem);
  return cuda::write_choices(planned_as(gpu), gpu.name, completed);
}

TuningTable tuning_table(const GpuInfo& gpu) try {
  const plan::Gpu target = planned_as(gpu);
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

std::string complete_problem(std::string_view problem) {
  return std::visit([](const auto& each) { return plan::text_of(each); }, problem_of(problem));
}

std::vector<std::string> product_candidates(std::string_view problem, const TargetGpu& gpu) {
  const plan::Gpu target = target_gpu("product_candidates", gpu.architecture, gpu.multiprocessors);
  std::vector<std::string> names;
  const auto add_names = [&](auto&& candidates) {
    for (auto& candidate : candidates) names.push_back(std::move(candidate.name));
  };
  const Problem parsed = problem_of(problem);
  if (const auto* product = std::get_if<plan::GemmProblem>(&parsed)) {
    add_names(plan::product_candidates(*product, target));
  } else {
    add_names(plan::weight_only_candidates(std::get<plan::WeightOnlyProblem>(parsed), target));
  }
  return names;
}

std::string planned_candidate(std::string_view problem, const TargetGpu& gpu) {
  const plan::Gpu target = target_gpu("planned_candidate", gpu.architecture, gpu.multiprocessors);
  return std::visit([&](const auto& each) { return plan::planned_candidate(each, target); },
                    problem_of(problem));
}

}  // namespace octofold
