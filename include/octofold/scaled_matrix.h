// An FP8 matrix that owns its memory, for programs that have no tensors of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "octofold/cast_targets.h"
#include "octofold/export.h"
#include "octofold/format.h"
#include "octofold/scale_layout.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold {

/// An FP8 matrix [rows, cols] with its scales in the layout of scale_layout(), in host memory or on
/// a GPU. Its codes are contiguous; on a GPU each row begins at a multiple of 32 bytes, as products
/// read them fastest. It moves but does not copy; to() makes a copy, on any device. One that was
/// moved from has no memory: until another is assigned to it, view(), target(), to(), codes() and
/// scales() throw Error(kInvalidArgument).
///
/// Example:
///   ScaledMatrix w(outputs, inputs, {.granularity = Granularity::kBlock128x128});
///   cast(matrix(values.data(), DType::kFloat32, outputs, inputs), {.rows = w.target()});
///   const ScaledMatrix w_on_gpu = w.to({DeviceType::kCuda, 0});
class OCTOFOLD_API ScaledMatrix {
 public:
  /// All codes and scales are zero, on a GPU too when the call returns. Memory on a GPU belongs to
  /// the device's primary context, as that of the CUDA runtime and torch does.
  /// Throws Error: kInvalidArgument for sizes that are negative or that memory cannot hold, for a
  /// format.dtype that is not FP8, and for a device that does not exist; kUnavailable without a
  /// usable driver, and if the GPU has too little memory left. Throws std::bad_alloc if the host
  /// has too little.
  ScaledMatrix(std::int64_t rows, std::int64_t cols, const Format& format = {}, Device device = {});

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  const Format& format() const { return format_; }
  Device device() const { return device_; }

  /// A view for operations to read, and a target for cast() to write; row_slice() takes rows of
  /// either.
  ScaledTensorView view() const;
  CastTarget target();

  /// A copy on another device, or on the same. It is complete when the call returns. Work on
  /// streams other than the legacy default one has to be finished before.
  ScaledMatrix to(Device device) const;

  /// Codes, row by row, and scales, row-major, of a matrix in host memory. Throws
  /// Error(kInvalidArgument) for one on a GPU: to() brings it here.
  std::span<std::uint8_t> codes();
  std::span<const std::uint8_t> codes() const;
  std::span<float> scales();
  std::span<const float> scales() const;

 private:
  struct OCTOFOLD_API Release {
    Device device;
    void operator()(void* memory) const noexcept;
  };
  using Memory = std::unique_ptr<void, Release>;

  static Memory allocate(std::int64_t bytes, Device device);
  void require_host() const;

  std::int64_t rows_, cols_;
  Format format_;
  Device device_;
  ScaleLayout layout_;  // empty in one that was moved from
  std::int64_t row_stride_;
  Memory codes_, scales_;
};

}  // namespace octofold
