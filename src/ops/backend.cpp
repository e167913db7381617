#include "ops/backend.h"

#include "core/check.h"
#include "cuda/runtime.h"

namespace octofold::ops {

cuda::Device& gpu(std::string_view operation, Device device) try {
  if (!has_memory(device)) core::fail_argument(operation, "device", "one with memory", "kNone");
  return cuda::device(device.index);
} catch (const Error& error) {
  core::fail(error.code(), "{}: the tensors are on cuda:{}, but {}", operation, device.index,
             error.what());
}

void require_scales(const core::Arguments& check, std::string_view argument,
                    const plan::OperandRule& rule, plan::Form form) {
  const auto refused = plan::refusal(rule, argument, form);
  if (refused) check.fail(refused->argument, refused->expected, refused->got);
}

}  // namespace octofold::ops
