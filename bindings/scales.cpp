// FP8 codes and numbers, and how scales lie.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "octofold/cast_targets.h"
#include "octofold/convert_dtype.h"
#include "octofold/dequantize.h"
#include "octofold/scale_layout.h"
#include "octofold/transpose.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {

void dequantize(tvm::ffi::TensorView data, tvm::ffi::TensorView scale, tvm::ffi::TensorView out,
                tvm::ffi::String granularity, OptionalStream stream) {
  const ScaledTensorView x{view_of("dequantize", "x", data),
                           view_of("dequantize", "x.scale", scale),
                           parse_granularity(view_of(granularity))};
  octofold::dequantize(x, view_of("dequantize", "out", out), stream_of(stream, out));
}

void convert_dtype(tvm::ffi::TensorView x, tvm::ffi::TensorView out, tvm::ffi::String overflow,
                   OptionalStream stream) {
  octofold::convert_dtype(view_of("convert_dtype", "x", x), view_of("convert_dtype", "out", out),
                          parse_overflow(view_of(overflow)), stream_of(stream, out));
}

void transpose(tvm::ffi::TensorView x, tvm::ffi::TensorView out, OptionalStream stream) {
  octofold::transpose(view_of("transpose", "x", x), view_of("transpose", "out", out),
                      stream_of(stream, out));
}

int64_t column_workspace_rows(int64_t rows, bool sums, bool amax) {
  return octofold::column_workspace_rows(rows, sums, amax);
}

tvm::ffi::Shape scale_shape(tvm::ffi::String granularity, int64_t rows, int64_t cols) {
  return tvm::ffi::Shape(
      octofold::scale_shape(parse_granularity(view_of(granularity)), rows, cols));
}

// For each granularity: its name, and a unit's rows and columns; 0: all that there are.
tvm::ffi::Array<tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>> granularities() {
  tvm::ffi::Array<tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>> all;
  for (const GranularityRow& row : kGranularityTable) {
    all.push_back(
        {{"name", tvm::ffi::String(row.name)}, {"rows", row.rows}, {"columns", row.cols}});
  }
  return all;
}

// Shape and strides.
tvm::ffi::Array<tvm::ffi::Shape> scale_layout(tvm::ffi::String granularity, int64_t rows,
                                              int64_t cols, bool on_gpu) {
  const ScaleLayout layout =
      octofold::scale_layout(parse_granularity(view_of(granularity)), rows, cols,
                             on_gpu ? DeviceType::kCuda : DeviceType::kCpu);
  return {tvm::ffi::Shape(layout.shape), tvm::ffi::Shape(layout.strides)};
}

OCTOFOLD_EXPORT(dequantize)
OCTOFOLD_EXPORT(convert_dtype)
OCTOFOLD_EXPORT(column_workspace_rows)
OCTOFOLD_EXPORT(granularities)
OCTOFOLD_EXPORT(scale_layout)
OCTOFOLD_EXPORT(scale_shape)
OCTOFOLD_EXPORT(transpose)

}  // namespace octofold::bindings
