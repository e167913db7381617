// Plans that follow the tables of measured choices.
#pragma once

#include <string_view>

#include "octofold/error.h"

#include "core/log.h"
#include "cuda/device.h"

namespace octofold::cuda {

/// plan(name) with the candidate that was measured to be the fastest, where one was; else, and
/// where there is none of this name, plan("") with what the planner reckons.
template <typename Problem, typename MakePlan>
auto follow_table(Device& device, const Problem& problem, MakePlan&& plan) {
  const std::string_view tuned = device.tuned(problem);
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

}  // namespace octofold::cuda
