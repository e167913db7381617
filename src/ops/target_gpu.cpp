#include "ops/target_gpu.h"

#include <fmt/ranges.h>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/format.h"
#include "ops/product.h"

namespace octofold::ops {

plan::Gpu target_gpu(std::string_view operation, std::string_view architecture,
                     std::int32_t multiprocessors) {
  if (multiprocessors < 2) {  // a cluster's blocks run on as many
    core::fail_argument(operation, "multiprocessors", "at least 2",
                        core::format("{}", multiprocessors));
  }
  std::vector<std::string> names;
  for (const int capability : {90, 89, 120, 121}) {  // of products
    const plan::Gpu gpu = plan::gpu_of(capability, multiprocessors);
    names.push_back(plan::architecture(gpu));
    if (names.back() == architecture) return gpu;
  }
  core::fail(ErrorCode::kUnsupported,
             "{}: there are no products for the architecture '{}', only for {}", operation,
             architecture, fmt::join(names, ", "));
}

void require_form(std::string_view operation, const GemmForm& form) {
  const core::Arguments check(operation);
  const auto require = [&](std::string_view field, DType dtype,
                           std::initializer_list<DType> dtypes) {
    check.require_dtype(field, {.dtype = dtype}, dtypes);
  };
  require("a", form.a.type, {DType::kE4M3, DType::kE5M2});
  require("b", form.b.type, {DType::kE4M3, DType::kE5M2});
  require("out", form.out, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  check.require_enumerator("a.granularity", form.a.scales);
  check.require_enumerator("b.granularity", form.b.scales);
  require_accumulation(check, form.a.scales, form.b.scales, form.fast_accumulation);
  if (form.b_channel_scale && form.b.scales != Granularity::kBlock128x128) {
    check.fail("b_channel_scale", "false, except for 128x128 scales of b", "true");
  }
}

}  // namespace octofold::ops
