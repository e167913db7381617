#include "octofold/batch_invariant.h"

#include <atomic>

#include "core/options.h"

namespace octofold {
namespace {

std::atomic<bool>& enabled_for_all() {
  static std::atomic<bool> enabled = core::options().batch_invariant;
  return enabled;
}

}  // namespace

void set_batch_invariant(bool enabled) { enabled_for_all().store(enabled); }

bool is_batch_invariant() { return enabled_for_all().load(std::memory_order_relaxed); }

}  // namespace octofold
