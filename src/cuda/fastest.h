// The kernel that a product takes: the one that is asked for, that was measured to be the fastest,
// or that is reckoned to be.
#pragma once

#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octofold/error.h"

#include "core/log.h"
#include "core/options.h"
#include "cuda/device.h"
#include "cuda/trials.h"
#include "plan/tuning.h"

namespace octofold::cuda {

/// The kernels of a problem that are tried, the one first that it has without trials.
template <typename Config>
struct Contest {
  struct Kernel {
    std::string name;
    Prepared<Config> prepared;
  };
  std::mutex mutex{};
  std::vector<Kernel> kernels{};
  std::optional<Trials> trials{};  ///< null before they have begun
};

/// A kernel that is loaded, and what its launch is timed for, if it is.
template <typename Config>
class Chosen {
 public:
  explicit Chosen(const Prepared<Config>& prepared) : prepared_(prepared) {}
  Chosen(const Prepared<Config>& prepared, std::shared_ptr<Contest<Config>> contest,
         Trials::Call* call)
      : prepared_(prepared), contest_(std::move(contest)), call_(call) {}
  ~Chosen() {
    if (call_ != nullptr) Trials::fail(*call_);
  }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;

  const Config& config() const { return prepared_.config; }

  void launch(Stream stream, const void* params) {
    const auto queue = [&] { prepared_.launch(stream, params); };
    if (call_ == nullptr) return queue();
    contest_->trials->record(*call_, stream, queue);
    call_ = nullptr;
  }

 private:
  Prepared<Config> prepared_;
  std::shared_ptr<Contest<Config>> contest_{};
  Trials::Call* call_ = nullptr;
};

/// plan(name) with the candidate that was measured to be the fastest, where one was; else, and
/// where there is none of this name, plan("") with what the planner reckons.
template <typename Problem, typename MakePlan>
auto follow_table(Device& device, const Problem& problem, MakePlan&& plan) {
  const std::string_view tuned = device.tuned(problem).candidate;
  if (!tuned.empty()) {
    try {
      return plan(tuned);
    } catch (const Error& error) {  // the table was edited: this version has all that it wrote
      core::log(LogLevel::kWarning, "cuda:{}: the tuning table names no candidate of {}: {}",
                device.index(), plan::describe(problem), error.what());
    }
  }
  return plan(std::string_view());
}

/// True if calls of the problem are alike: with rows that arrive a kernel waits for others, and of
/// masked groups only the device knows how many rows there are this time.
template <typename Problem>
bool can_be_tried(const Problem& problem) {
  return problem.work != config::Work::kArrivingRows && problem.work != config::Work::kMaskedRows;
}

/// Begins the trials of a problem: of the kernel that it has without them and, where the user's
/// table has none, of the few that are reckoned to be the fastest. One that does not load is left
/// out.
template <typename Config, typename Problem, typename MakePlan>
void begin(Contest<Config>& contest, Device& device, const Problem& problem,
           const Prepared<Config>& first, MakePlan&& plan) {
  constexpr std::size_t kMostKernels = 4;
  const auto tuned = device.tuned(problem);
  std::vector<std::string> names{std::string(tuned.candidate)};
  if (!tuned.is_own) {
    for (std::string& name : plan::best_candidates(problem, device.gpu(), kMostKernels)) {
      if (names.front().empty()) {
        names.front() = std::move(name);
      } else if (name != names.front() && names.size() < kMostKernels) {
        names.push_back(std::move(name));
      }
    }
  }
  std::vector<typename Contest<Config>::Kernel> kernels{{names.front(), first}};
  for (std::size_t i = 1; i < names.size(); ++i) try {
      kernels.push_back({names[i], device.load(plan(names[i]), plan::describe(problem))});
    } catch (const Error& error) {
      core::log(LogLevel::kWarning, "cuda:{}: {} is not tried: {}", device.index(), names[i],
                error.what());
    }
  contest.kernels = std::move(kernels);
  contest.trials.emplace(device.driver(), device.context(), contest.kernels.size());
}

/// Says what trials have come to, and puts it into the user's table.
template <typename Config, typename Problem>
void conclude(const Contest<Config>& contest, Device& device, const Problem& problem) {
  const std::size_t fastest = *contest.trials->fastest();
  const double best = contest.trials->times(fastest).least;
  const double first = contest.trials->times(0).least;
  core::log(LogLevel::kInfo, "cuda:{}: {}: {} takes {:.1f} us, {} as planned {:.1f}",
            device.index(), plan::describe(problem), contest.kernels[fastest].name, best,
            contest.kernels[0].name, first);
  std::string text = plan::Tuning::text_of(problem);
  if (text.empty() || !std::isfinite(best) || !std::isfinite(first)) return;
  device.keep({std::move(text), contest.kernels[fastest].name, best, first});
}

/// The kernel for a call of the problem on this stream. plan(name): the plan by the candidate of
/// this name, or, where it is empty, by reckoning; `candidate`: what the caller asks for, if
/// anything; told(config): is called with what the problem has without trials, at its first call.
template <typename Problem, typename MakePlan, typename Told>
auto choose_kernel(Device& device, const Problem& problem, std::string_view candidate,
                   Stream stream, MakePlan&& plan, Told&& told) {
  using Config = decltype(plan(candidate).config);
  if (!candidate.empty()) {
    return Chosen<Config>(device.load(plan(candidate), plan::describe(problem)));
  }
  const auto without_trials = [&] {
    return device.prepared(problem, [&] {
      auto planned = follow_table(device, problem, plan);
      told(planned.config);
      return planned;
    });
  };
  if (!core::options().tries_kernels || !can_be_tried(problem)) {
    return Chosen<Config>(without_trials());
  }
  auto contest = device.remembered<std::shared_ptr<Contest<Config>>>(
      problem, [] { return std::make_shared<Contest<Config>>(); });
  bool is_over = false;
  Trials::Turn turn;
  {
    const std::lock_guard lock(contest->mutex);
    if (!contest->trials) {
      if (is_capturing(device.driver(), device.context(), stream)) {
        return Chosen<Config>(without_trials());
      }
      begin(*contest, device, problem, without_trials(), plan);
    }
    is_over = !contest->trials->fastest();
    turn = contest->trials->next(stream);
    is_over = is_over && contest->trials->fastest();
  }
  if (is_over) conclude(*contest, device, problem);
  return Chosen<Config>(contest->kernels[turn.kernel].prepared, contest, turn.call);
}

}  // namespace octofold::cuda
