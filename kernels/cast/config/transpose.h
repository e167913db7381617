// The transpose of bytes: its kernel's configuration, and what the host passes.
#pragma once

namespace octofold::config {

struct TransposeConfig {
  bool vector_loads = true;  // whether rows of x can be accessed in whole vectors
  bool vector_stores = true;

  static constexpr const char* kHeader = "kernels/cast/transpose.h";
  static constexpr const char* kKernel = "transpose_kernel";
  static constexpr const char* kTypeName = "octofold::config::TransposeConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("vector_loads", vector_loads);
    field("vector_stores", vector_stores);
  }
  friend constexpr bool operator==(const TransposeConfig&, const TransposeConfig&) = default;

  static constexpr int kVector = 16;              // bytes that a thread has of a row
  static constexpr int kTile = 128;               // rows and columns of a block of threads
  static constexpr int kLanes = kTile / kVector;  // threads along a row
  static constexpr int kRows = 4;                 // of a thread, one below another
  static constexpr int kSharedBytes = kTile * kTile;

  constexpr int threads() const { return kLanes * (kTile / kRows); }
  constexpr const char* invalid_reason() const { return nullptr; }
};

// Of matrices [rows, cols], one below another, whose transposes, [cols, rows], are so too. Strides
// count bytes.
struct TransposeParams {
  const unsigned char* x;
  long long x_stride;
  unsigned char* out;
  long long out_stride;
  long long rows;
  long long cols;
};

}  // namespace octofold::config
