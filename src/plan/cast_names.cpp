// Configurations of casts as text: for the compiler, and for people.
#include <array>

#include "core/format.h"
#include "plan/cast.h"
#include "plan/literal.h"
#include "plan/words.h"

namespace octofold::plan {

using config::CastConfig;
using config::ConvertConfig;

std::string cast_kernel_name(const CastConfig& config) {
  const StructLiteral rule =
      StructLiteral("CastRule")
          .field("form", config.rule.form)
          .field("rounding", config.rule.rounding)
          .field("power_of_two_by_default", config.rule.power_of_two_by_default)
          .field("amax_floor", config.rule.amax_floor)
          .field("scale_floor", config.rule.scale_floor)
          .field("power_of_two_floor", config.rule.power_of_two_floor)
          .field("repair_factor", config.rule.repair_factor);
  const StructLiteral literal = StructLiteral("CastConfig")
                                    .field("step", config.step)
                                    .field("in", config.in)
                                    .field("out", config.out)
                                    .field("unit", config.unit)
                                    .field("direction", config.direction)
                                    .field("rule", rule.text())
                                    .field("power_of_two", config.power_of_two)
                                    .field("saturate", config.saturate)
                                    .field("vector_loads", config.vector_loads)
                                    .field("vector_stores", config.vector_stores)
                                    .field("tile_rows", config.tile_rows)
                                    .field("rows_per_thread", config.rows_per_thread)
                                    .field("raster_rows", config.raster_rows)
                                    .field("threads_per_row", config.threads_per_row)
                                    .field("vectors_per_thread", config.vectors_per_thread)
                                    .field("reread", config.reread)
                                    .field("blocks_per_row", config.blocks_per_row)
                                    .field("part_bytes", config.part_bytes);
  return core::format("octofold::cast_kernel<{}>", literal.text());
}

std::string convert_kernel_name(const ConvertConfig& config) {
  const StructLiteral literal = StructLiteral("ConvertConfig")
                                    .field("in", config.in)
                                    .field("out", config.out)
                                    .field("scaled", config.scaled)
                                    .field("unit", config.unit)
                                    .field("saturate", config.saturate)
                                    .field("vectors", config.vectors)
                                    .field("threads_x", config.threads_x)
                                    .field("threads_y", config.threads_y)
                                    .field("rows_per_thread", config.rows_per_thread);
  return core::format("octofold::convert_kernel<{}>", literal.text());
}

std::string describe(const CastConfig& config) {
  constexpr std::array kDirections{"", ", transposed", ", both ways"};
  constexpr std::array kSteps{"",
                              ", whole rows",
                              ", wide rows",
                              ", clearing of scales",
                              ", amax only",
                              ", codes only",
                              ", scales only"};
  return core::format("cast {} → {}, {}{}{}{}", word(config.in), word(config.out),
                      word(config.unit), kDirections[static_cast<std::size_t>(config.direction)],
                      kSteps[static_cast<std::size_t>(config.step)],
                      config.vector_loads && config.vector_stores ? "" : ", element by element");
}

std::string describe(const ConvertConfig& config) {
  return core::format("{} {} → {}{}", config.scaled ? "dequantize" : "convert", word(config.in),
                      word(config.out), config.vectors ? "" : ", element by element");
}

}  // namespace octofold::plan
