// The kernel that a product takes: the one that is asked for, that was measured to be the fastest,
// or that is reckoned to be.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
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
  std::mutex mutex;
  std::vector<Prepared<Config>> kernels{};
  std::vector<std::string> names{};
  std::optional<Trials> trials{};
};

/// A kernel that is loaded, and what its launch is timed for, if it is.
template <typename Config>
class Chosen {
 public:
  explicit Chosen(const Prepared<Config>& prepared) : prepared_(prepared) {}
  Chosen(const Prepared<Config>& prepared, std::shared_ptr<Contest<Config>> contest,
         Trials::Call* call)
      : prepared_(prepared), contest_(std::move(contest)), call_(call) {}

  const Config& config() const { return prepared_.config; }

  void launch(Stream stream, const void* params) const {
    const auto queue = [&] { prepared_.launch(stream, params); };
    return call_ == nullptr ? queue() : contest_->trials->record(*call_, stream, queue);
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
  const auto [own, shipped] = device.tuned(problem);
  const std::string_view tuned = own.empty() ? shipped : own;
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

/// Enters the kernel that the problem has without trials and, where the user's table has none, the
/// few that are reckoned to be the fastest. One that does not load is left out.
template <typename Config, typename Problem, typename MakePlan>
void enter(Contest<Config>& contest, Device& device, const Problem& problem,
           const Prepared<Config>& first, MakePlan&& plan) {
  constexpr std::size_t kMostKernels = 4;
  const auto [own, shipped] = device.tuned(problem);
  contest.kernels.push_back(first);
  std::vector<std::string> rivals;
  if (own.empty()) rivals = plan::best_candidates(problem, device.gpu(), kMostKernels);
  contest.names.emplace_back(!own.empty()       ? own
                             : !shipped.empty() ? shipped
                                                : std::string_view(rivals.at(0)));
  std::erase(rivals, contest.names.front());
  if (rivals.size() == kMostKernels) rivals.pop_back();
  for (std::string& name : rivals) try {
      contest.kernels.push_back(device.load(plan(name), plan::describe(problem)));
      contest.names.push_back(std::move(name));
    } catch (const Error& error) {
      core::log(LogLevel::kWarning, "cuda:{}: {} is not tried: {}", device.index(), name,
                error.what());
    }
  contest.trials.emplace(device.driver(), device.context(), contest.kernels.size());
}

/// Says what a contest has come to and, where it was one, keeps it.
template <typename Config, typename Problem>
void conclude(const Contest<Config>& contest, const Device& device, const Problem& problem) {
  const Trials& trials = *contest.trials;
  const std::size_t fastest = *trials.fastest();
  const double best = trials.microseconds(fastest), planned = trials.microseconds(0);
  core::log(LogLevel::kInfo, "cuda:{}: {}: {} takes {:.1f} us, {} as planned {:.1f}",
            device.index(), plan::describe(problem), contest.names[fastest], best, contest.names[0],
            planned);
  const std::string text = plan::Tuning::text_of(problem);
  if (!text.empty()) device.keep({text, contest.names[fastest], best, planned});
}

/// The kernel for a call of the problem on this stream. plan(name): the plan by the candidate of
/// this name, or, where it is empty, by reckoning; `candidate`: what the caller asks for, if
/// anything.
template <typename Problem, typename MakePlan>
auto choose_kernel(Device& device, const Problem& problem, std::string_view candidate,
                   Stream stream, MakePlan&& plan) {
  using Config = decltype(plan(candidate).config);
  if (!candidate.empty()) {
    return Chosen<Config>(device.load(plan(candidate), plan::describe(problem)));
  }
  const auto without_trials = [&] {
    return device.prepared(problem, [&] { return follow_table(device, problem, plan); });
  };
  if (!core::options().tries_kernels) return Chosen<Config>(without_trials());
  auto contest = device.remembered<std::shared_ptr<Contest<Config>>>(
      problem, [] { return std::make_shared<Contest<Config>>(); });
  const std::lock_guard lock(contest->mutex);
  if (!contest->trials) {
    if (is_capturing(device.driver(), device.context(), stream)) {
      return Chosen<Config>(without_trials());
    }
    enter(*contest, device, problem, without_trials(), plan);
  }
  const bool was_decided = contest->trials->fastest().has_value();
  const Trials::Turn turn = contest->trials->next(stream);
  if (!was_decided && contest->trials->fastest()) conclude(*contest, device, problem);
  return Chosen<Config>(contest->kernels[turn.kernel], contest, turn.call);
}

}  // namespace octofold::cuda
