#include "ops/scales.h"

namespace octofold::ops {

void require_scales(const core::Arguments& check, std::string_view argument,
                    const plan::OperandRule& rule, plan::Form form) {
  const auto refused = plan::refusal(rule, argument, form);
  if (refused) check.fail(refused->argument, refused->expected, refused->got);
}

}  // namespace octofold::ops
