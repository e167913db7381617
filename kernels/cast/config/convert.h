// The configurations of the kernels that write numbers, as cast.h has those of the casts.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/cast/config/source.h"

namespace octofold::config {

// Element-wise: conversion between dtypes, and dequantization where there are scales.
struct ConvertConfig {
  DType in = DType::kE4M3;
  DType out = DType::kBFloat16;
  bool scaled = false;
  Granularity granularity = Granularity::kTensor;  // where scaled
  bool saturate = true;
  bool vectors = true;  // whether rows can be accessed in whole vectors, as above

  // Threads along a row, rows of threads, and rows that each thread works on.
  int threads_x = 256;
  int threads_y = 1;
  int rows_per_thread = 4;

  static constexpr const char* kHeader = "kernels/cast/convert.h";
  static constexpr const char* kKernel = "convert_kernel";
  static constexpr const char* kTypeName = "octofold::config::ConvertConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("out", out);
    field("scaled", scaled);
    field("granularity", granularity);
    field("saturate", saturate);
    field("vectors", vectors);
    field("threads_x", threads_x);
    field("threads_y", threads_y);
    field("rows_per_thread", rows_per_thread);
  }
  friend constexpr bool operator==(const ConvertConfig&, const ConvertConfig&) = default;

  // Elements of a thread in a row: 16 bytes of the wider type.
  constexpr int vector() const {
    return 16 / (size_of(in) > size_of(out) ? size_of(in) : size_of(out));
  }
  constexpr int threads() const { return threads_x * threads_y; }
  constexpr int tile_rows() const { return threads_y * rows_per_thread; }
  constexpr int tile_cols() const { return threads_x * vector(); }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const {
    if (scaled && (!is_fp8(in) || is_fp8(out)))
      return "scales need an FP8 input and a wider output";
    if (threads_x < 1 || threads_y < 1 || threads() % 32 != 0 || threads() > 1024) {
      return "a block has to consist of whole warps, at most 1024 threads";
    }
    if (rows_per_thread < 1 || rows_per_thread > 8) return "rows_per_thread has to be from 1 to 8";
    return nullptr;
  }
};

// An activation or its gradient in numbers: what a cast of that source casts.
struct ValuesConfig {
  DType in = DType::kBFloat16;  // of what is read, and written
  CastSource source{};
  bool vectors = true;

  static constexpr const char* kHeader = "kernels/cast/values.h";
  static constexpr const char* kKernel = "values_kernel";
  static constexpr const char* kTypeName = "octofold::config::ValuesConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("source", source);
    field("vectors", vectors);
  }
  friend constexpr bool operator==(const ValuesConfig&, const ValuesConfig&) = default;

  constexpr int vector() const { return 16 / size_of(in); }
  static constexpr int threads() { return 256; }
  constexpr const char* invalid_reason() const {
    return source.has_activation() ? nullptr : "only activations are written as numbers";
  }
};

}  // namespace octofold::config
