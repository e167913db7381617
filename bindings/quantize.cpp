#include "octofold/quantize.h"

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

// Of the casts of x and of its transpose either or both.
void quantize(tvm::ffi::TensorView x, OptionalTensor data, OptionalTensor scale,
              OptionalTensor transposed_data, OptionalTensor transposed_scale,
              tvm::ffi::String granularity, tvm::ffi::Optional<bool> power_of_two,
              tvm::ffi::String overflow, tvm::ffi::String profile, bool static_scales,
              OptionalStream stream) {
  const Granularity unit = parse_granularity(view_of(granularity));
  QuantizeOptions options = options_of(power_of_two, overflow, profile);
  const auto view = [&](const OptionalTensor& codes, const OptionalTensor& scales) {
    return MutableScaledTensorView{view_of("quantize", "out", *codes),
                                   view_of("quantize", "out.scale", *scales), unit};
  };
  const TensorView source = view_of("quantize", "x", x, "float32, float16 or bfloat16");
  if (static_scales) throw Error(ErrorCode::kUnsupported, "quantize: static scales");
  if (data && transposed_data) {
    return octofold::quantize_both(source, view(data, scale),
                                   view(transposed_data, transposed_scale), options,
                                   stream_of(stream, x));
  }
  options.transpose = transposed_data.has_value();
  octofold::quantize(source, data ? view(data, scale) : view(transposed_data, transposed_scale),
                     options, stream_of(stream, x));
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

OCTOFOLD_EXPORT(quantize)
OCTOFOLD_EXPORT(dequantize)
OCTOFOLD_EXPORT(convert)
OCTOFOLD_EXPORT(scale_shape)

}  // namespace octofold::bindings
