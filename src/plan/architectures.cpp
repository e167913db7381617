#include "plan/architectures.h"

#include "plan/mma/planner.h"
#include "plan/sm90/planner.h"

namespace octofold::plan {

std::span<const Architecture> architectures() {
  static const Architecture kArchitectures[] = {
      // PTX that is translated for a later GPU has no products of warpgroups.
      {.runs_on = [](const Gpu& gpu) { return gpu.compute_major == 9 && !gpu.is_translated; },
       .products = &sm90::product_planner(),
       .weight_only = &sm90::weight_only_planner(),
       .attention = &sm90::attention_planner()},
      {.runs_on = [](const Gpu&) { return true; },  // capability.h says what is too old
       .products = &mma::product_planner(),
       .weight_only = &mma::weight_only_planner(),
       .attention = &mma::attention_planner()}};
  return kArchitectures;
}

}  // namespace octofold::plan
