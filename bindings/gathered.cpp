#include <cstdint>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "octofold/cast.h"

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

void quantize_gathered(tvm::ffi::TensorView x, tvm::ffi::TensorView sources, OptionalTensor factors,
                       OptionalTensor offsets, OptionalTensor data, OptionalTensor scale,
                       OptionalTensor transposed_data, OptionalTensor transposed_scale,
                       int64_t slots, tvm::ffi::String granularity,
                       OptionalText transposed_granularity, tvm::ffi::Optional<bool> power_of_two,
                       tvm::ffi::String overflow, tvm::ffi::String rule, OptionalStream stream) {
  const CastOperation operation{"cast"};
  const GatheredRows source{.x = operation.input("x", x),
                            .sources = view_of(operation.name, "sources", sources, "int32"),
                            .slots = slots,
                            .factors = operation.optional("factors", factors, "float32")};
  CastTargets targets = operation.targets({data, scale}, {transposed_data, transposed_scale},
                                          format_of(power_of_two, overflow, rule), granularity,
                                          transposed_granularity, ScaleSource::kComputed);
  targets.offsets = operation.offsets(offsets);
  octofold::cast(source, targets, stream_of(stream, x));
}

OCTOFOLD_EXPORT(quantize_gathered)

}  // namespace octofold::bindings
