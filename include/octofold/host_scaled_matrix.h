// An FP8 matrix that owns its memory, for programs that have no tensors of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octofold/casts.h"
#include "octofold/tensor.h"

namespace octofold {

/// A contiguous FP8 matrix [rows, cols] in host memory with its scales; all zero at first.
class HostScaledMatrix {
 public:
  HostScaledMatrix(std::int64_t rows, std::int64_t cols, Granularity granularity,
                   DType dtype = DType::kE4M3)
      : rows_(rows), cols_(cols), granularity_(granularity), dtype_(dtype) {
    std::int64_t scale_count = 1;
    for (const std::int64_t size : scale_shape(granularity, rows, cols)) scale_count *= size;
    codes_.resize(static_cast<std::size_t>(rows * cols));
    scales_.resize(static_cast<std::size_t>(scale_count));
  }

  MutableScaledTensorView view() { return view_of<MutableScaledTensorView>(*this); }
  ScaledTensorView view() const { return view_of<ScaledTensorView>(*this); }

  std::vector<std::uint8_t>& codes() { return codes_; }
  const std::vector<std::uint8_t>& codes() const { return codes_; }
  std::vector<float>& scales() { return scales_; }
  const std::vector<float>& scales() const { return scales_; }

 private:
  template <typename View, typename Self>
  static View view_of(Self& self) {
    const auto shape = scale_shape(self.granularity_, self.rows_, self.cols_);
    auto* scales = self.scales_.data();
    return {matrix(self.codes_.data(), self.dtype_, self.rows_, self.cols_),
            shape.size() == 1 ? vector(scales, DType::kFloat32, shape[0])
                              : matrix(scales, DType::kFloat32, shape[0], shape[1]),
            self.granularity_};
  }

  std::int64_t rows_, cols_;
  Granularity granularity_;
  DType dtype_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
};

}  // namespace octofold
