// A GPU as the backend uses it: what the planner wants to know, its kernels, and what has been
// prepared for the problems that it met.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/driver.h"
#include "cuda/group_check.h"
#include "cuda/kernel.h"
#include "cuda/memo.h"
#include "cuda/tuning_file.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::cuda {

/// The source of kernels: some are precompiled, any can be compiled.
struct KernelSource {
  std::function<jit::Binary(const jit::Program&)> compile{};
  std::function<std::optional<jit::Binary>(const jit::Program&)> precompiled{};
};

/// A loaded kernel and how many blocks of it a problem takes.
struct Launch {
  const Kernel* kernel = nullptr;
  std::int64_t blocks = 0;
};

/// A plan whose kernels are loaded.
template <typename Config>
class Prepared {
 public:
  static constexpr std::size_t kMostLaunches = 5;  // a cast by channels with column sums

  explicit Prepared(const Config& config_) : config(config_) {}

  Config config;

  void add(const Launch& launch) { launches_.at(count_++) = launch; }

  /// Queues one of them.
  void launch(std::size_t kernel, std::int64_t blocks, Stream stream, const void* params) const {
    launches_.at(kernel).kernel->launch(stream, blocks, params);
  }

  /// Queues the kernels, one after another. `params`: the struct that all of them take.
  void launch(Stream stream, const void* params) const {
    for (std::size_t i = 0; i < count_; ++i) {
      launches_[i].kernel->launch(stream, launches_[i].blocks, params);
    }
  }

 private:
  std::array<Launch, kMostLaunches> launches_{};
  std::size_t count_ = 0;
};

/// Safe to use from several threads.
class Device {
 public:
  /// Retains the device's primary context, for good: it is the one that torch and the CUDA runtime
  /// use too.
  Device(const Driver& driver, int index, KernelSource source);

  int index() const { return index_; }
  const plan::Gpu& gpu() const { return gpu_; }
  const Driver& driver() const { return driver_; }
  ContextHandle context() const { return context_; }
  /// Allocated at the first call.
  GroupFaults& group_faults();

  /// The candidate that was measured to be the fastest, empty where none was: by the user's table,
  /// else by the library's. Tables are read at the first call.
  struct Tuned {
    std::string_view candidate;
    bool is_own;
  };
  template <typename Problem>
  Tuned tuned(const Problem& problem) {
    std::call_once(tuning_once_, [&] { read_tables(); });
    const std::string_view own = tuning_.candidate(problem);
    return {own.empty() ? shipped_tuning_.candidate(problem) : own, !own.empty()};
  }
  /// Puts a choice into the user's table on disk, for later processes. Warns once where it cannot.
  void keep(const MeasuredChoice& choice);

  /// The plan of make_plan() for the problem, loaded: worked out at the first call of the problem
  /// and remembered. make_plan() returns a plan::Plan.
  template <plan::HasFields Problem, typename MakePlan>
  auto prepared(const Problem& problem, MakePlan&& make_plan) {
    using Config = decltype(make_plan().config);
    return remembered<Prepared<Config>>(problem,
                                        [&] { return load(make_plan(), plan::describe(problem)); });
  }

  /// The value that make() returned for the problem at its first call.
  template <typename Value, plan::HasFields Problem, typename Make>
  Value remembered(const Problem& problem, Make&& make) {
    return memo<Memo<Problem, Value>>().get(problem, make);
  }

  /// Loads the kernels of a plan; `purpose`: for the log.
  template <typename Config>
  Prepared<Config> load(const plan::Plan<Config>& plan, const std::string& purpose) {
    Prepared<Config> prepared(plan.config);
    for (const plan::KernelPlan& kernel : plan.kernels) prepared.add(load(kernel, purpose));
    return prepared;
  }

 private:
  struct Slot {
    std::mutex mutex;
    std::optional<Kernel> kernel;
  };

  static constexpr std::size_t kMostMemos = 32;

  template <typename AMemo>
  AMemo& memo() {
    const std::size_t number = memo_number<AMemo>();
    std::call_once(memo_once_.at(number), [&] { memos_[number] = std::make_unique<AMemo>(); });
    return static_cast<AMemo&>(*memos_[number]);
  }

  Launch load(const plan::KernelPlan& plan, const std::string& purpose);
  /// The plan's kernel, told from others by plan.kernel: loaded at the first call, precompiled or
  /// compiled then, by one of the threads that ask while the others wait. Throws Error that names
  /// plan.description.
  const Kernel& kernel(const plan::KernelPlan& plan);
  Kernel new_kernel(const plan::KernelPlan& plan) const;
  void read_tables();
  void require_resources(const plan::KernelPlan& plan) const;

  const Driver& driver_;
  int index_;
  KernelSource source_;
  plan::Gpu gpu_;
  ContextHandle context_ = nullptr;

  std::mutex mutex_;  // of the map, not of its slots
  std::map<std::string, Slot, std::less<>> kernels_;
  std::array<std::once_flag, kMostMemos> memo_once_;
  std::array<std::unique_ptr<AnyMemo>, kMostMemos> memos_;

  std::string name_;
  std::once_flag tuning_once_;
  plan::Tuning tuning_;
  plan::Tuning shipped_tuning_;
  std::once_flag unkept_once_;

  std::once_flag faults_once_;
  std::optional<GroupFaults> faults_;
};

/// The program that the JIT is to compile for a plan.
jit::Program program_of(const plan::KernelPlan& plan, const plan::Gpu& gpu);

}  // namespace octofold::cuda
