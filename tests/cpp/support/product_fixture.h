// Products on the fake GPU.
#pragma once

#include "octofold/log.h"

#include "core/format.h"
#include "cuda/fake_runtime.h"
#include "cuda/product.h"
#include "kernels/sm90/config/checks.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {

// Texts of the parameters and tensor maps of a product. Matrices have the names of the arguments.
inline std::string text(const void* data) {
  const auto place = reinterpret_cast<std::uintptr_t>(data);
  if (data == test::kNumbers) return "numbers";
  for (const auto& [begin, name] : {std::pair{test::kBias, "bias"},
                                    {test::kC - 0x100000, "c"},
                                    {test::kOut - 0x100000, "out"},
                                    {test::kB, "b"},
                                    {test::kA, "a"}}) {
    if (place < begin) continue;
    const auto offset =
        static_cast<std::int64_t>(place - (begin + 0xFFFFFF) / 0x1000000 * 0x1000000);
    if (offset == static_cast<std::int64_t>(test::kToScale)) return core::format("{}.scale", name);
    return offset == 0 ? name : core::format("{} {:+}", name, offset);
  }
  return data == nullptr ? "none" : core::format("{:#x}", place);
}
inline std::string text(const config::WorkParams& work) {
  const std::string sizes = core::format("{}×{}×{}", work.rows, work.columns, work.depth);
  if (work.numbers == nullptr) return sizes;
  const std::string groups =
      core::format("{}, {} groups by {}", sizes, work.groups, text(work.numbers));
  if (work.shard_rows == 0) return groups;
  return core::format("{}, of {} rows, from {} on", groups, work.shard_rows, work.first_shard);
}
inline std::string text(const config::OperandParams& operand) {
  const auto& [scale, row_stride, k_stride, group_stride] = operand.scale;
  return core::format("{}, rows {} apart; {}, {} and {} apart", text(operand.data), operand.stride,
                      text(scale), row_stride, k_stride) +
         (group_stride > 0 ? core::format(", of groups {}", group_stride) : "");
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
