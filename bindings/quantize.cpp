#include <optional>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "octofold/casts.h"
#include "octofold/scale_layout.h"

#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

namespace {

std::optional<MutableScaledTensorView> target(std::string_view argument, const OptionalTensor& data,
                                              const OptionalTensor& scale, Granularity unit) {
  if (!data) return std::nullopt;
  const std::string scale_argument = std::string(argument) + ".scale";
  return MutableScaledTensorView{
      view_of("quantize", argument, *data, "e4m3 or e5m2"),
      scale ? view_of("quantize", scale_argument, *scale, "float32") : MutableTensorView{}, unit};
}

}  // namespace

// The casts of x, of its transpose, or both. With static_scales the scales are inputs.
void quantize(tvm::ffi::TensorView x, OptionalTensor data, OptionalTensor scale,
              OptionalTensor transposed_data, OptionalTensor transposed_scale,
              tvm::ffi::String granularity, tvm::ffi::Optional<bool> power_of_two,
              tvm::ffi::String overflow, tvm::ffi::String profile, bool static_scales,
              OptionalStream stream) {
  const Granularity unit = parse_granularity(view_of(granularity));
  QuantizeOptions options{.profile = parse_profile(view_of(profile)),
                          .overflow = parse_overflow(view_of(overflow)),
                          .scales = static_scales ? ScaleSource::kGiven : ScaleSource::kComputed};
  if (power_of_two) options.power_of_two = *power_of_two;
  const TensorView source = view_of("quantize", "x", x, "float32, float16 or bfloat16");
  octofold::quantize(
      source,
      {.rows = target("out.rows", data, scale, unit),
       .transposed = target("out.transposed", transposed_data, transposed_scale, unit)},
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

// Shape and strides.
tvm::ffi::Array<tvm::ffi::Shape> scale_layout(tvm::ffi::String granularity, int64_t rows,
                                              int64_t cols, bool on_gpu) {
  const ScaleLayout layout =
      octofold::scale_layout(parse_granularity(view_of(granularity)), rows, cols,
                             on_gpu ? DeviceType::kCuda : DeviceType::kCpu);
  return {tvm::ffi::Shape(layout.shape), tvm::ffi::Shape(layout.strides)};
}

OCTOFOLD_EXPORT(quantize)
OCTOFOLD_EXPORT(dequantize)
OCTOFOLD_EXPORT(convert)
OCTOFOLD_EXPORT(scale_layout)
OCTOFOLD_EXPORT(scale_shape)

}  // namespace octofold::bindings
