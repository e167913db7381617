#include "octofold/quantize.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

namespace {

QuantizeOptions options_of(const tvm::ffi::Optional<bool>& power_of_two,
                           const tvm::ffi::String& overflow, const tvm::ffi::String& profile) {
  QuantizeOptions options{.profile = parse_profile(view_of(profile)),
                          .overflow = parse_overflow(view_of(overflow))};
  if (power_of_two) options.power_of_two = *power_of_two;
  return options;
}

}  // namespace

void quantize(tvm::ffi::TensorView x, tvm::ffi::TensorView data, tvm::ffi::TensorView scale,
              tvm::ffi::String granularity, tvm::ffi::Optional<bool> power_of_two,
              tvm::ffi::String overflow, tvm::ffi::String profile, bool transpose,
              OptionalStream stream) {
  QuantizeOptions options = options_of(power_of_two, overflow, profile);
  options.transpose = transpose;
  octofold::quantize(view_of("quantize", "x", x),
                     {view_of("quantize", "out", data), view_of("quantize", "out.scale", scale),
                      parse_granularity(view_of(granularity))},
                     options, stream_of(stream, x));
}

void quantize_both(tvm::ffi::TensorView x, tvm::ffi::TensorView data, tvm::ffi::TensorView scale,
                   tvm::ffi::TensorView transposed_data, tvm::ffi::TensorView transposed_scale,
                   tvm::ffi::String granularity, tvm::ffi::Optional<bool> power_of_two,
                   tvm::ffi::String overflow, tvm::ffi::String profile, OptionalStream stream) {
  const auto view = [](std::string_view argument, const tvm::ffi::TensorView& tensor) {
    return view_of("quantize_both", argument, tensor);
  };
  const Granularity unit = parse_granularity(view_of(granularity));
  octofold::quantize_both(view("x", x), {view("out", data), view("out.scale", scale), unit},
                          {view("out_transposed", transposed_data),
                           view("out_transposed.scale", transposed_scale), unit},
                          options_of(power_of_two, overflow, profile), stream_of(stream, x));
}

void dequantize(tvm::ffi::TensorView data, tvm::ffi::TensorView scale, tvm::ffi::TensorView out,
                tvm::ffi::String granularity, OptionalStream stream) {
  octofold::dequantize({view_of("dequantize", "x", data), view_of("dequantize", "x.scale", scale),
                        parse_granularity(view_of(granularity))},
                       view_of("dequantize", "out", out), stream_of(stream, out));
}

void convert(tvm::ffi::TensorView x, tvm::ffi::TensorView out, tvm::ffi::String overflow,
             OptionalStream stream) {
  octofold::convert(view_of("convert", "x", x), view_of("convert", "out", out),
                    parse_overflow(view_of(overflow)), stream_of(stream, out));
}

tvm::ffi::Shape scale_shape(tvm::ffi::String granularity, int64_t rows, int64_t cols) {
  return tvm::ffi::Shape(
      octofold::scale_shape(parse_granularity(view_of(granularity)), rows, cols));
}

// Shape and strides.
tvm::ffi::Array<tvm::ffi::Shape> scale_layout(tvm::ffi::String granularity, int64_t rows,
                                              int64_t cols, bool on_gpu) {
  const ScaleLayout layout =
      octofold::scale_layout(parse_granularity(view_of(granularity)), rows, cols,
                             on_gpu ? DeviceType::kCuda : DeviceType::kCpu);
  return {tvm::ffi::Shape(layout.shape), tvm::ffi::Shape(layout.strides)};
}

OCTOFOLD_EXPORT(quantize)
OCTOFOLD_EXPORT(quantize_both)
OCTOFOLD_EXPORT(dequantize)
OCTOFOLD_EXPORT(convert)
OCTOFOLD_EXPORT(scale_layout)
OCTOFOLD_EXPORT(scale_shape)

}  // namespace octofold::bindings
