// Products on the fake GPU.
#pragma once

#include "octofold/log.h"

#include "core/format.h"
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "kernels/sm90/config/checks.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {

// Texts of the tensor maps of a product. Matrices have the names of the arguments.
inline std::string text(const void* data) {
  const auto place = reinterpret_cast<std::uintptr_t>(data);
  for (const auto& [begin, name] :
       {std::pair{test::kOut, "out"}, {test::kB, "b"}, {test::kA, "a"}}) {
    const auto offset = static_cast<std::int64_t>(place - begin);
    if (std::abs(offset) < 0x100000)
      return offset == 0 ? name : core::format("{} {:+}", name, offset);
  }
  return core::format("{:#x}", place);
}
inline std::string text(const fake::TensorMapCall& map) {
  const std::string outer =
      map.rank == 3 ? core::format("{} every {} bytes of ", map.outer, map.outer_bytes) : "";
  return core::format("{}: {}{}×{} of type {}, rows {} bytes apart, boxes {}×{}, swizzle {}",
                      text(map.address), outer, map.rows, map.cols, map.data_type, map.row_bytes,
                      map.box_rows, map.box_cols, map.swizzle);
}

class ProductTest : public FakeGpuTest {
 protected:
  ProductTest() {
    set_log_handler([this](LogLevel, std::string_view message) { log_.emplace_back(message); });
  }
  ~ProductTest() override { set_log_handler({}); }

  void multiply(core::Product product, std::string_view candidate = {}, Stream stream = {}) {
    product.candidate = candidate;
    cuda::multiply(runtime().device(0), product, stream);
  }
  std::string refusal(const core::Product& product, std::string_view candidate = {},
                      ErrorCode code = ErrorCode::kUnsupported) {
    return error_of([&] { multiply(product, candidate); }, code);
  }
  const fake::Launch& last() { return state().launches.back(); }
  config::Sm90GemmParams last_params() { return last().params_as<config::Sm90GemmParams>(); }
  std::vector<fake::TensorMapCall>& maps() { return state().tensor_maps; }
  std::vector<std::string> map_texts() {
    std::vector<std::string> texts;
    for (const fake::TensorMapCall& map : maps()) texts.push_back(text(map));
    return texts;
  }

  std::vector<std::string> log_;
};

}  // namespace octofold::cuda
