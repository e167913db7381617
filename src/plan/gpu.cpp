#include "plan/gpu.h"

#include "core/format.h"

namespace octofold::plan {

std::string architecture(const Gpu& gpu) {
  return core::format("sm_{}{}{}", gpu.compute_major, gpu.compute_minor,
                      gpu.compute_major == 9 ? "a" : "");
}

}  // namespace octofold::plan
