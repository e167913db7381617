// A product whose A comes in high precision, and is cast to FP8 with a scale for each 1x128 on its
// way into the stages ("dynamic quantization"): what is read, how it is cast, and by whom.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/cast_rule.h"

namespace octofold::config {

struct DynamicInput {
  bool exists = false;
  // The fields below count if it exists. The type of the codes is that of the product's `a`.
  DType type = DType::kBFloat16;
  CastRule rule = kDeepGemmRule;
  bool power_of_two = false;
  bool saturate = true;
  // True if rows can be read in whole vectors: their addresses and lengths are multiples of 16
  // bytes.
  bool vectors = true;

  static constexpr const char* kTypeName = "octofold::config::DynamicInput";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("exists", exists);
    if (!exists) return;
    field("type", type);
    field("rule", rule);
    field("power_of_two", power_of_two);
    field("saturate", saturate);
    field("vectors", vectors);
  }
  friend constexpr bool operator==(const DynamicInput&, const DynamicInput&) = default;

  // Elements of a lane's 16 bytes, lanes that have the 128 of a row, and rows that a warp has so.
  constexpr int vector() const { return 16 / size_of(type); }
  constexpr int lanes() const { return kScaleBlock / vector(); }
  constexpr int rows_at_once() const { return 32 / lanes(); }
};

// In a description its type says the rest.
constexpr const char* word(const DynamicInput& dynamic) {
  if (!dynamic.exists) return "";
  switch (dynamic.type) {
    case DType::kFloat32: return dynamic.vectors ? "float32" : "float32 by elements";
    case DType::kFloat16: return dynamic.vectors ? "float16" : "float16 by elements";
    case DType::kBFloat16: return dynamic.vectors ? "bfloat16" : "bfloat16 by elements";
    default: return "?";
  }
}

// The warps that cast, one warpgroup.
inline constexpr int kCastWarps = 4;

// Registers of a thread that casts, where so many blocks share a multiprocessor and a tile has so
// many columns: what the producer and the consumer warpgroup leave. Four blocks leave too few.
constexpr int cast_registers(int blocks_per_multiprocessor, int tile_columns) {
  if (blocks_per_multiprocessor == 1) return 144;
  if (blocks_per_multiprocessor == 2) return tile_columns <= 32 ? 120 : 88;
  return 64;
}
inline constexpr int kMostCastingBlocks = 3;

}  // namespace octofold::config
