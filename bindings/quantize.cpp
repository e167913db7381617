#include "octofold/quantize.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "error.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

void quantize(tvm::ffi::TensorView x, tvm::ffi::TensorView data, tvm::ffi::TensorView scale,
              tvm::ffi::String granularity, tvm::ffi::Optional<bool> power_of_two,
              tvm::ffi::String overflow, tvm::ffi::String profile, bool transpose) {
  QuantizeOptions options{.profile = parse_profile(view_of(profile)),
                          .overflow = parse_overflow(view_of(overflow)),
                          .transpose = transpose};
  if (power_of_two) options.power_of_two = *power_of_two;
  octofold::quantize(view_of("quantize", "x", x),
                     {view_of("quantize", "out", data), view_of("quantize", "out.scale", scale),
                      parse_granularity(view_of(granularity))},
                     options);
}

void dequantize(tvm::ffi::TensorView data, tvm::ffi::TensorView scale, tvm::ffi::String granularity,
                tvm::ffi::TensorView out) {
  octofold::dequantize({view_of("dequantize", "x", data), view_of("dequantize", "x.scale", scale),
                        parse_granularity(view_of(granularity))},
                       view_of("dequantize", "out", out));
}

void convert(tvm::ffi::TensorView x, tvm::ffi::TensorView out, tvm::ffi::String overflow) {
  octofold::convert(view_of("convert", "x", x), view_of("convert", "out", out),
                    parse_overflow(view_of(overflow)));
}

tvm::ffi::Shape scale_shape(tvm::ffi::String granularity, int64_t rows, int64_t cols) {
  return tvm::ffi::Shape(
      octofold::scale_shape(parse_granularity(view_of(granularity)), rows, cols));
}

OCTOFOLD_EXPORT(quantize)
OCTOFOLD_EXPORT(dequantize)
OCTOFOLD_EXPORT(convert)
OCTOFOLD_EXPORT(scale_shape)

}  // namespace octofold::bindings
