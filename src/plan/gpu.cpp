#include "plan/gpu.h"

#include <fmt/format.h>

namespace octofold::plan {

std::string architecture(const Gpu& gpu) {
  return fmt::format("sm_{}{}{}", gpu.compute_major, gpu.compute_minor,
                     gpu.compute_major == 9 ? "a" : "");
}

}  // namespace octofold::plan
