// Functions of this library as compilers of other frameworks call them (octofold.jax): with the
// arrays that there are, and nothing else.
#include <array>
#include <cfenv>
#include <cstdint>
#include <string>
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/function.h>
#include <vector>

#include "octofold/tensor.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;

// Signs for the places of arrays.
constexpr char kAbsent = '-', kByColumns = 'c';

// Sets strides by which the last dimension varies slowest, the others as in row-major order.
void set_strides_by_columns(const DLTensor& tensor, std::int64_t* strides) {
  std::int64_t step = 1;
  for (std::int32_t i = tensor.ndim - 1; i-- > 0;) {
    strides[i] = step;
    step *= tensor.shape[i];
  }
  if (tensor.ndim > 0) strides[tensor.ndim - 1] = step;
}

// XLA lets its threads take subnormal numbers for 0, which here are numbers.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&callers_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t callers_;
};

struct StridedTensor {
  DLTensor tensor;
  std::array<std::int64_t, kMaxRank> strides;
};

// Memory that nobody may look at.
struct NoMemory {
  std::int64_t address;
  void AllocData(DLTensor* tensor) const { tensor->data = reinterpret_cast<void*>(address); }
  void FreeData(DLTensor* /*tensor*/) const {}
};

}  // namespace

// `function` with its options, for a caller that hands over arrays only. `arrays` has a sign for
// each place of an array: '-' nothing is there, 'c' it lies column by column in memory that the
// caller takes for row-major, any other that it is as it seems.
Function bind(Function function, tvm::ffi::String arrays, tvm::ffi::Array<Any> options) {
  return Function::FromPacked([function, signs = std::string(view_of(arrays)), options](
                                  const AnyView* given, std::int32_t count, Any* result) {
    std::vector<AnyView> arguments;
    arguments.reserve(signs.size() + options.size() + 1);
    std::vector<StridedTensor> strided;
    strided.reserve(signs.size());
    const AnyView* const end = given + count;
    for (const char sign : signs) {
      if (sign == kAbsent) {
        arguments.emplace_back();
        continue;
      }
      if (given == end) TVM_FFI_THROW(TypeError) << "expected arrays for " << signs;
      const AnyView& array = *given++;
      if (sign != kByColumns) {
        arguments.push_back(array);
        continue;
      }
      StridedTensor& by_columns = strided.emplace_back();
      by_columns.tensor = *array.cast<DLTensor*>();
      if (by_columns.tensor.ndim > kMaxRank) TVM_FFI_THROW(TypeError) << "too many dimensions";
      set_strides_by_columns(by_columns.tensor, by_columns.strides.data());
      by_columns.tensor.strides = by_columns.strides.data();
      arguments.emplace_back(&by_columns.tensor);
    }
    if (given != end) TVM_FFI_THROW(TypeError) << "expected no more arrays than " << signs;
    for (const Any& option : options) arguments.emplace_back(option);
    arguments.emplace_back();  // the stream of the environment
    const DefaultArithmetic arithmetic;
    function.CallPacked(arguments.data(), static_cast<std::int32_t>(arguments.size()), result);
  });
}

// A row-major tensor without memory (DeviceType::kNone). Those of one call have addresses that lie
// apart, for `place` from 1 on.
tvm::ffi::Tensor without_memory(std::int64_t place, tvm::ffi::Shape shape, DLDataType dtype) {
  constexpr int kAddressBits = 57;  // as many bytes as an array may have
  return tvm::ffi::Tensor::FromNDAlloc(NoMemory{place << kAddressBits}, shape, dtype,
                                       DLDevice{kDLExtDev, 0});
}

OCTOFOLD_EXPORT(bind)
OCTOFOLD_EXPORT(without_memory)

}  // namespace octofold::bindings
