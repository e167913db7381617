#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tvm/ffi/any.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <vector>

#include "octofold/cast.h"

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using OptionalBool = tvm::ffi::Optional<bool>;
using OptionalInt = tvm::ffi::Optional<int64_t>;

// The arguments of a job: x, rows (codes, scales, granularity), transposed (likewise),
// power_of_two, overflow, rule, matrices.
constexpr std::int32_t kOfJob = 11, kOfTarget = 3;

std::optional<CastTarget> target_of(const CastOperation& operation, const std::string& argument,
                                    const AnyView* given, Format format) {
  const auto data = given[0].cast<OptionalTensor>();
  if (!data) return std::nullopt;
  format.granularity = parse_granularity(view_of(given[2].cast<tvm::ffi::String>()));
  CastTarget target{.data = view_of(operation.name, argument, *data, "e4m3 or e5m2"),
                    .scale = view_of(operation.name, argument + ".scale",
                                     given[1].cast<tvm::ffi::TensorView>(), "float32"),
                    .format = format};
  target.format.dtype = target.data.dtype;
  return target;
}

CastJob job_of(const CastOperation& operation, const AnyView* given) {
  const AnyView* options = given + 1 + 2 * kOfTarget;
  const Format format =
      format_of(options[0].cast<OptionalBool>(), options[1].cast<tvm::ffi::String>(),
                options[2].cast<tvm::ffi::String>());
  CastJob job{.source = operation.input("x", given[0].cast<tvm::ffi::TensorView>()),
              .targets = {.rows = target_of(operation, "out.rows", given + 1, format),
                          .transposed = target_of(operation, "out.transposed",
                                                  given + 1 + kOfTarget, format)}};
  if (const auto matrices = options[3].cast<OptionalInt>()) job.targets.matrices = *matrices;
  return job;
}

// All jobs, one after another, and the stream.
void cast_jobs(const AnyView* given, std::int32_t count) {
  if (count % kOfJob != 1) TVM_FFI_THROW(TypeError) << "expected jobs and a stream";
  if (count == 1) return;
  std::vector<CastJob> jobs;
  jobs.reserve(static_cast<std::size_t>(count / kOfJob));
  for (std::int32_t first = 0; first + 1 < count; first += kOfJob) {
    const std::string name = "cast_many: job " + std::to_string(first / kOfJob);
    jobs.push_back(job_of({name}, given + first));
  }
  octofold::cast_many(jobs, stream_of(given[count - 1].cast<OptionalStream>(),
                                      given[0].cast<tvm::ffi::TensorView>()));
}

void guarded(const AnyView* given, std::int32_t count) {
  Guarded<"cast_many", &cast_jobs>::call(given, count);
}

}  // namespace

// The function that takes any number of jobs.
tvm::ffi::Function cast_many() {
  return tvm::ffi::Function::FromPacked(
      [](const AnyView* given, std::int32_t count, Any* /*result*/) { guarded(given, count); });
}

OCTOFOLD_EXPORT(cast_many)

}  // namespace octofold::bindings
