// A GEMM configuration as text: for the compiler, and for people.
#include <fmt/format.h>

#include "plan/gemm.h"

namespace octofold::plan {
namespace {

using config::Addend;
using config::Element;
using config::GemmConfig;
using config::GemmScaling;
using config::MathOrder;
using config::OperandLoad;
using config::OutputStore;

std::string_view enumerator(Element element) {
  switch (element) {
    case Element::kFloat32: return "kFloat32";
    case Element::kFloat16: return "kFloat16";
    case Element::kBFloat16: return "kBFloat16";
    case Element::kE4M3: return "kE4M3";
    case Element::kE5M2: return "kE5M2";
  }
  return "?";
}

std::string_view enumerator(GemmScaling scaling) {
  switch (scaling) {
    case GemmScaling::kTensor: return "kTensor";
    case GemmScaling::kChannel: return "kChannel";
    case GemmScaling::kBlock: return "kBlock";
    case GemmScaling::kBlockByBlock: return "kBlockByBlock";
  }
  return "?";
}

std::string_view enumerator(Addend addend) {
  switch (addend) {
    case Addend::kNone: return "kNone";
    case Addend::kOutputType: return "kOutputType";
    case Addend::kFloat32: return "kFloat32";
  }
  return "?";
}

// "kBlockByBlock" → "block_by_block" would be work; people read the enumerator without its k.
std::string_view word(std::string_view enumerator_name) { return enumerator_name.substr(1); }

}  // namespace

std::string gemm_kernel_name(const GemmConfig& config) {
  return fmt::format(
      "octofold::gemm_kernel<octofold::config::GemmConfig{{"
      ".a = octofold::config::Element::{}, .b = octofold::config::Element::{}, "
      ".out = octofold::config::Element::{}, .scaling = octofold::config::GemmScaling::{}, "
      ".c = octofold::config::Addend::{}, .bias = octofold::config::Addend::{}, "
      ".promote = {}, .tile_m = {}, .tile_n = {}, .math_warpgroups = {}, .stages = {}, "
      ".cluster_m = {}, .cluster_n = {}, .load = octofold::config::OperandLoad::{}, "
      ".store = octofold::config::OutputStore::{}, .order = octofold::config::MathOrder::{}, "
      ".early_wait = {}, .raster_rows = {}}}>",
      enumerator(config.a), enumerator(config.b), enumerator(config.out),
      enumerator(config.scaling), enumerator(config.c), enumerator(config.bias), config.promote,
      config.tile_m, config.tile_n, config.math_warpgroups, config.stages, config.cluster_m,
      config.cluster_n, config.load == OperandLoad::kTma ? "kTma" : "kThreads",
      config.store == OutputStore::kTma ? "kTma" : "kDirect",
      config.order == MathOrder::kFree ? "kFree" : "kTakeTurns", config.early_wait,
      config.raster_rows);
}

std::string describe(const GemmConfig& config) {
  std::string text =
      fmt::format("gemm {} × {} → {}, {} scales, tile {}×{}, {} math warpgroups, {} stages",
                  word(enumerator(config.a)), word(enumerator(config.b)),
                  word(enumerator(config.out)), word(enumerator(config.scaling)), config.tile_m,
                  config.tile_n, config.math_warpgroups, config.stages);
  if (config.cluster_size() > 1) {
    text += fmt::format(", cluster {}×{}", config.cluster_m, config.cluster_n);
  }
  if (config.c != Addend::kNone) text += fmt::format(", C {}", word(enumerator(config.c)));
  if (config.bias != Addend::kNone) text += fmt::format(", bias {}", word(enumerator(config.bias)));
  if (!config.promote) text += ", fast accumulation";
  if (config.load == OperandLoad::kThreads) text += ", operands copied by threads (slower)";
  if (config.store == OutputStore::kDirect) text += ", direct stores";
  if (config.order == MathOrder::kTakeTurns) text += ", turns";
  if (config.early_wait) text += ", early wait";
  return text;
}

std::string architecture(const Gpu& gpu) {
  return fmt::format("sm_{}{}{}", gpu.compute_major, gpu.compute_minor,
                     gpu.compute_major == 9 ? "a" : "");
}

}  // namespace octofold::plan
