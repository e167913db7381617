// A GEMM configuration as text: for the compiler, and for people.
#include "core/format.h"
#include "plan/gemm.h"
#include "plan/literal.h"
#include "plan/words.h"

namespace octofold::plan {

using config::Addend;
using config::GemmConfig;

std::string gemm_kernel_name(const GemmConfig& config) {
  const StructLiteral literal = StructLiteral("GemmConfig")
                                    .field("a", config.a)
                                    .field("b", config.b)
                                    .field("out", config.out)
                                    .field("scaling", config.scaling)
                                    .field("c", config.c)
                                    .field("bias", config.bias)
                                    .field("promote", config.promote)
                                    .field("tile_m", config.tile_m)
                                    .field("tile_n", config.tile_n)
                                    .field("math_warpgroups", config.math_warpgroups)
                                    .field("stages", config.stages)
                                    .field("cluster_m", config.cluster_m)
                                    .field("cluster_n", config.cluster_n)
                                    .field("load", config.load)
                                    .field("store", config.store)
                                    .field("order", config.order)
                                    .field("early_wait", config.early_wait)
                                    .field("raster_rows", config.raster_rows);
  return core::format("octofold::gemm_kernel<{}>", literal.text());
}

std::string describe(const GemmConfig& config) {
  std::string text =
      core::format("gemm {} × {} → {}, {} scales, tile {}×{}, {} math warpgroups, {} stages",
                   word(config.a), word(config.b), word(config.out), words(config.scaling),
                   config.tile_m, config.tile_n, config.math_warpgroups, config.stages);
  if (config.cluster_size() > 1) {
    text += core::format(", cluster {}×{}", config.cluster_m, config.cluster_n);
  }
  const auto add_addend = [&](std::string_view name, Addend addend) {
    if (addend == Addend::kNone) return;
    const bool is_wide = addend == Addend::kFloat32;
    text += core::format(", {} {}", name, word(is_wide ? config::Element::kFloat32 : config.out));
  };
  add_addend("C", config.c);
  add_addend("bias", config.bias);
  if (!config.promote) text += ", fast accumulation";
  if (config.load == config::OperandLoad::kThreads) {
    text += ", operands copied by threads (slower)";
  }
  if (config.store == config::OutputStore::kDirect) text += ", direct stores";
  if (config.order == config::MathOrder::kTakeTurns) text += ", turns";
  if (config.early_wait) text += ", early wait";
  return text;
}

}  // namespace octofold::plan
