#include "cuda/cast.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "core/log.h"
#include "core/scale_layout.h"
#include "cuda/element.h"
#include "cuda/memo.h"
#include "kernels/config/cast_params.h"
#include "plan/cast.h"

namespace octofold::cuda {
namespace {

using config::CastDirection;
using config::ScaleUnit;
using plan::CastProblem;
using plan::ConvertProblem;

// A kernel that is loaded, and how many blocks of threads it takes.
struct Step {
  const Kernel* kernel;
  std::int64_t blocks;
};

struct Steps {
  std::array<Step, 4> steps;
  int count = 0;

  void launch(Stream stream, const void* params) const {
    for (int i = 0; i < count; ++i) {
      const Step& step = steps[static_cast<std::size_t>(i)];
      step.kernel->launch(stream, step.blocks, params);
    }
  }
};

ScaleUnit unit_of(Granularity granularity) {
  switch (granularity) {
    case Granularity::kTensor: return ScaleUnit::kTensor;
    case Granularity::kChannel: return ScaleUnit::kChannel;
    case Granularity::kBlock1x128: return ScaleUnit::kBlock1x128;
    case Granularity::kBlock128x128: return ScaleUnit::kBlock128x128;
  }
  return {};
}

// Whether each row begins at a multiple of `bytes`.
template <typename View>
bool is_aligned(const View& matrix, std::int64_t bytes) {
  const bool stride_fits =
      matrix.shape[0] <= 1 || matrix.strides[0] * size_of(matrix.dtype) % bytes == 0;
  return stride_fits &&
         reinterpret_cast<std::uintptr_t>(matrix.data) % static_cast<std::uintptr_t>(bytes) == 0;
}

bool codes_are_aligned(const MutableScaledTensorView* out) {
  return out == nullptr || is_aligned(out->data, 8);
}

Steps prepare(Device& device, const CastProblem& problem) {
  Steps prepared;
  for (auto [config, blocks] : plan::plan_cast(problem, device.gpu())) {
    const KernelSource source{.program = {.header = plan::kCastHeader,
                                          .kernel = plan::cast_kernel_name(config),
                                          .architecture = plan::architecture(device.gpu()),
                                          .description = plan::describe(config)},
                              .threads = static_cast<unsigned>(config.threads()),
                              .cluster_size = static_cast<unsigned>(config.blocks_per_row),
                              .shared_bytes = static_cast<unsigned>(config.shared_bytes())};
    const Kernel& kernel = device.kernel(source);
    if (config.is_persistent()) blocks = std::min(blocks, kernel.resident_blocks());
    core::log(LogLevel::kDebug, "quantize {}×{} on cuda:{}: {}, {} blocks", problem.rows,
              problem.cols, device.index(), source.program.description, blocks);
    prepared.steps[static_cast<std::size_t>(prepared.count++)] = {&kernel, blocks};
  }
  return prepared;
}

Steps prepare(Device& device, const ConvertProblem& problem) {
  const auto [config, blocks] = plan::plan_convert(problem, device.gpu());
  if (blocks == 0) return {};
  const KernelSource source{.program = {.header = plan::kConvertHeader,
                                        .kernel = plan::convert_kernel_name(config),
                                        .architecture = plan::architecture(device.gpu()),
                                        .description = plan::describe(config)},
                            .threads = static_cast<unsigned>(config.threads())};
  core::log(LogLevel::kDebug, "{}×{} on cuda:{}: {}, {} blocks", problem.rows, problem.cols,
            device.index(), source.program.description, blocks);
  return {{Step{&device.kernel(source), blocks}}, 1};
}

template <typename Problem>
Steps prepared(Device& device, const Problem& problem) {
  // Never freed: threads may still be at work when the process ends.
  static auto& memo = *new Memo<Problem, Steps>;
  return memo.get(device, problem, [&] { return prepare(device, problem); });
}

config::CastOutput output_of(const MutableScaledTensorView* out) {
  if (out == nullptr) return {};
  const core::ScaleAccess<float> scale = core::scale_access(*out);
  return {.codes = static_cast<unsigned char*>(out->data.data),
          .codes_stride = out->data.strides[0],
          .scale = scale.data,
          .scale_row_stride = scale.row_stride,
          .scale_col_stride = scale.col_stride};
}

// `scale` is read where the problem is scaled.
void convert(Device& device, ConvertProblem problem, core::ScaleAccess<const float> scale,
             const TensorView& x, const MutableTensorView& out, Stream stream) {
  problem.rows = x.shape[0];
  problem.cols = x.shape[1];
  problem.in = element_of(x.dtype);
  problem.out = element_of(out.dtype);
  const int vector = config::ConvertConfig{.in = problem.in, .out = problem.out}.vector();
  problem.is_aligned =
      is_aligned(x, vector * size_of(x.dtype)) && is_aligned(out, vector * size_of(out.dtype));
  const config::ConvertParams params{.x = x.data,
                                     .x_stride = x.strides[0],
                                     .out = out.data,
                                     .out_stride = out.strides[0],
                                     .rows = x.shape[0],
                                     .cols = x.shape[1],
                                     .scale = scale.data,
                                     .scale_row_stride = scale.row_stride,
                                     .scale_col_stride = scale.col_stride};
  prepared(device, problem).launch(stream, &params);
}

}  // namespace

void quantize(Device& device, const TensorView& x, const MutableScaledTensorView* out,
              const MutableScaledTensorView* out_transposed, const config::CastRule& rule,
              bool power_of_two, Overflow overflow, Stream stream) {
  const MutableScaledTensorView& any = out != nullptr ? *out : *out_transposed;
  const CastProblem problem{
      .rows = x.shape[0],
      .cols = x.shape[1],
      .in = element_of(x.dtype),
      .out = element_of(any.data.dtype),
      .unit = unit_of(any.granularity),
      .direction = out == nullptr              ? CastDirection::kTransposed
                   : out_transposed == nullptr ? CastDirection::kRows
                                               : CastDirection::kBoth,
      .rule = rule,
      .power_of_two = power_of_two,
      .saturate = overflow == Overflow::kSaturate,
      .x_is_aligned = is_aligned(x, 16),
      .codes_are_aligned = codes_are_aligned(out) && codes_are_aligned(out_transposed)};
  const config::CastParams params{.x = x.data,
                                  .x_stride = x.strides[0],
                                  .rows = x.shape[0],
                                  .cols = x.shape[1],
                                  .row_cast = output_of(out),
                                  .transposed_cast = output_of(out_transposed)};
  prepared(device, problem).launch(stream, &params);
}

void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream) {
  convert(device, {.scaled = true, .unit = unit_of(x.granularity)}, core::scale_access(x), x.data,
          out, stream);
}

void convert(Device& device, const TensorView& x, const MutableTensorView& out, Overflow overflow,
             Stream stream) {
  convert(device, {.saturate = overflow == Overflow::kSaturate}, {}, x, out, stream);
}

}  // namespace octofold::cuda
