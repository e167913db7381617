#include <optional>

#include "plan/sm90/planner.h"

namespace octofold::plan::sm90 {
namespace {

// The same for a GPU with products of warpgroups. A third of them leaves each thread fewer
// registers, which hold sums of 128 numbers and scores of 64 keys (or 64 and 96), and has codes
// decoded less often. Scales take registers too, of consumers and producers; so do pages, and codes
// of wide heads, of producers. Shared memory is what stages are for. FP8 scores are of heads that
// are one chain of products.
std::optional<config::WarpgroupQueriesConfig> warpgroup_queries(const config::AttentionForm& form,
                                                                bool allows_fp8_scores,
                                                                const Gpu& gpu) {
  using Config = config::WarpgroupQueriesConfig;
  const bool scales = form.k_scales || form.v_scales;
  const bool paged = form.layout == config::KeyLayout::kPaged;
  // Registers hold the places of added parts besides scales, and units of rows beside factors of
  // FP8 queries.
  const bool has_room =
      !(form.adds_parts() && scales) && !(form.part_keys > 0 && form.v_scales && allows_fp8_scores);
  const int warpgroups = form.value_size <= 128 && has_room ? 3 : 2;
  int keys = 64;
  if (form.value_size <= 64) {
    if (!scales && form.head_size <= 192) keys = 96;
  } else if (form.value_size <= 128) {
    if (scales) keys = 48;
  } else if (form.value_size > 192) {
    if (scales || paged) keys = 48;
  }
  const bool fp8_scores = allows_fp8_scores && form.head_size <= Config::kMostOfChain;
  const Config candidates[] = {{form, warpgroups, keys, keys < 64 ? 10 : 8, fp8_scores},
                               {form, warpgroups, keys, 8, fp8_scores},
                               {form, warpgroups, keys, 6, fp8_scores},
                               {form, warpgroups, keys, 4, fp8_scores}};
  return first_that_fits(candidates, 1, gpu);
}

class Attention final : public AttentionPlanner {
 public:
  // Few rows leave warpgroups nothing to share.
  std::optional<AttentionConfig> choose(const AttentionProblem& problem,
                                        const Gpu& gpu) const override {
    if (!problem.has_many_rows()) return {};
    if (!problem.has_wide_heads()) {
      return warpgroup_queries(problem.form, problem.allows_fp8_scores, gpu);
    }
    const config::WarpgroupLatentConfig latent[] = {{problem.form}};
    return first_that_fits(latent, 1, gpu);
  }
};

}  // namespace

const AttentionPlanner& attention_planner() {
  static const Attention planner;
  return planner;
}

}  // namespace octofold::plan::sm90
