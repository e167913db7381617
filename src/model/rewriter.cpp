#include "model/rewriter.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "octofold/convert_dtype.h"
#include "octofold/dequantize.h"

#include "core/check.h"
#include "core/log.h"
#include "model/json_text.h"
#include "model/scale_names.h"
#include "model/weight_selection.h"

namespace octofold::model {
namespace {

DType fp8_of(const CheckpointTensor& codes) {
  return codes.dtype == "F8_E4M3" ? DType::kE4M3 : DType::kE5M2;
}

/// The shape of the scales of one matrix, or of a stack.
std::vector<std::int64_t> scale_shape_of(const Family& family, const Step& step) {
  const MatrixSizes sizes(step.values.shape);
  std::vector<std::int64_t> shape = family.scale_shape(step.to, sizes.rows, sizes.cols);
  if (step.values.shape.size() == 3) shape.insert(shape.begin(), sizes.matrices);
  return shape;
}

/// True if an entry of a header is the former family's, and would belie the tensors.
bool tells_of_scales(std::string_view key, std::string_view text) {
  return key == "_quantization_metadata" || key == "tensor_names" ||
         text.starts_with(R"({"_type")");
}

/// Doubles to floats, in place.
void narrow(std::vector<std::byte>& values) {
  const std::size_t count = values.size() / sizeof(double);
  for (std::size_t i = 0; i < count; ++i) {
    double value = 0;
    std::memcpy(&value, values.data() + i * sizeof(double), sizeof(double));
    const auto narrowed = static_cast<float>(value);
    std::memcpy(values.data() + i * sizeof(float), &narrowed, sizeof(float));
  }
  values.resize(count * sizeof(float));
}

/// A line for each reason but patterns, which are the caller's own choice or documented.
void log_left_alone(const std::vector<LeftAlone>& weights) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const LeftAlone& weight : weights) {
    if (!weight.reason.starts_with(kByPattern)) by_reason[weight.reason].push_back(weight.name);
  }
  for (const auto& [reason, names] : by_reason) {
    core::log(LogLevel::kWarning, "{} weights are left as they are, because {}: {}", names.size(),
              reason, quoted(names));
  }
}

void log_names(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  core::log(LogLevel::kWarning, "{} {}: {}", names.size(), what, quoted(names));
}

}  // namespace

Rewriter::Rewriter(const RewritePlan& plan, const Format& format,
                   const CheckpointProgress& progress, std::int64_t total_bytes)
    : plan_(plan),
      metadata_(plan.family->metadata(describe(plan))),
      progress_(progress),
      total_bytes_(total_bytes),
      caster_(format) {
  advance(0);
}

std::vector<std::string> Rewriter::write(const std::vector<const Step*>& steps,
                                         const std::map<std::string, std::string>& metadata,
                                         const std::filesystem::path& output) {
  std::vector<TensorInfo> tensors;
  std::vector<std::string> names;
  for (const Step* step : steps) {
    for (TensorInfo& tensor : tensors_of(*step)) {
      names.push_back(tensor.name);
      tensors.push_back(std::move(tensor));
    }
  }
  std::map<std::string, std::string> entries = metadata_;
  for (const auto& [key, text] : metadata) {
    if (!tells_of_scales(key, text)) entries.emplace(key, text);
  }
  SafetensorsWriter writer(output, std::move(tensors), entries);
  for (const Step* step : steps) run(*step, writer);
  writer.finish();
  report_.output_bytes += writer.data_bytes();
  return names;
}

CheckpointReport Rewriter::finish() {
  const std::int64_t left_out = total_bytes_ - report_.input_bytes;
  if (left_out > 0) advance(left_out);
  report_.dropped = plan_.dropped;
  report_.left_alone = plan_.left_alone;
  log_left_alone(report_.left_alone);
  log_names(
      "weights hold NaN or infinity now: their own, or NaN that the rule makes of zeros (deepseek, "
      "torchao-tensor)",
      report_.not_finite);
  for (const auto& [of, count] : lost_) {
    if (count.second < count.first) continue;
    core::fail(
        ErrorCode::kBadFormat,
        "expected scales of {} above zero, got {} that are NaN, infinite, negative or zero: {}", of,
        count.second, quoted(senseless_));
  }
  log_names("scales hold numbers that are NaN, infinite, negative or zero", senseless_);
  std::vector<std::string> changes;
  for (const std::string& weight : report_.requantized) {
    const WeightChange& change = report_.changes.at(weight);
    changes.push_back(core::format("{} ({} of {} values changed, by up to {:.2g} %)", weight,
                                   change.changed, change.values, 100 * change.largest_error));
  }
  log_names("weights were cast anew, because no scales of the family can repeat theirs", changes);
  log_names("tensors or settings are left out, because the family has no place for them",
            report_.dropped);
  return report_;
}

std::vector<TensorInfo> Rewriter::tensors_of(const Step& step) const {
  if (step.kind == Step::Kind::kCopy) {
    return {{.name = step.name,
             .dtype = *find_safetensors_dtype(step.values.dtype),
             .shape = step.values.shape}};
  }
  if (step.kind == Step::Kind::kWiden) {
    return {{.name = step.name, .dtype = SafetensorsDType::kBF16, .shape = step.values.shape}};
  }
  const Spelling& names = plan_.family->spelling();
  std::vector<TensorInfo> tensors = {{.name = spelled(names.codes, step.name),
                                      .dtype = SafetensorsDType::kF8E4M3,
                                      .shape = step.values.shape},
                                     {.name = spelled(names.scale, step.name),
                                      .dtype = SafetensorsDType::kF32,
                                      .shape = scale_shape_of(*plan_.family, step)}};
  if (step.input_scale) {
    tensors.push_back({.name = spelled(names.input_scale, step.name),
                       .dtype = SafetensorsDType::kF32,
                       .shape = one_scale_of(*plan_.family, step.input_scale->shape)});
  }
  return tensors;
}

void Rewriter::run(const Step& step, SafetensorsWriter& output) {
  switch (step.kind) {
    case Step::Kind::kCopy: copy(step, output); break;
    case Step::Kind::kWiden: widen(step, output); break;
    case Step::Kind::kKeep: keep(step, output); break;
    case Step::Kind::kQuantize:
    case Step::Kind::kRequantize: cast(step, output); break;
  }
  if (step.input_scale) write_input_scale(step, output);
  (step.is_weight() ? report_.quantized : report_.copied).push_back(step.name);
}

template <typename Action>
void Rewriter::each_piece(const CheckpointTensor& tensor, Action action) {
  for (std::int64_t offset = 0; offset < tensor.bytes;) {
    input_.resize(std::min(kTileBytes, tensor.bytes - offset));
    data_.read(tensor, offset, input_);
    action(offset, std::span<const std::byte>(input_));
    offset += std::ssize(input_);
    advance(std::ssize(input_));
  }
}

void Rewriter::copy(const Step& step, SafetensorsWriter& output) {
  each_piece(step.values, [&](std::int64_t offset, std::span<const std::byte> bytes) {
    output.write(step.name, offset, bytes);
    if (is_kv_scale(step.name) && is_scale(step.values)) {
      check("caches", step.values, floats_of(step.values.dtype, bytes));
    }
  });
}

void Rewriter::check(std::string_view of, const CheckpointTensor& scale,
                     std::span<const float> values, const CheckpointTensor* codes) {
  const std::int64_t senseless = count_senseless(values);
  auto& [all, lost] = lost_[of];
  ++all;
  if (codes == nullptr && senseless == std::ssize(values)) ++lost;
  if (senseless == 0) return;
  const std::string got = core::format("{} of {}", senseless, values.size());
  senseless_.push_back(core::format("{} ({})", scale.name, got));
  if (codes == nullptr || senseless < std::ssize(values)) return;
  // Some who write zeros alone give them a scale of zero.
  const std::vector<std::byte> bytes = data_.read(*codes);
  const bool is_number = std::any_of(bytes.begin(), bytes.end(), [](std::byte code) {
    const auto magnitude = std::to_integer<int>(code & std::byte{0x7f});
    return magnitude != 0 && magnitude != 0x7f;
  });
  if (!is_number) return;
  core::fail(ErrorCode::kBadFormat, "{}: tensor {}: {} scales are NaN, infinite, negative or zero",
             scale.file.string(), quote(scale.name), got);
}

void Rewriter::widen(const Step& step, SafetensorsWriter& output) {
  each_piece(step.values, [&](std::int64_t offset, std::span<const std::byte> codes) {
    const auto count = std::ssize(codes);
    wide_.resize(2 * count);
    convert_dtype(vector(codes.data(), fp8_of(step.values), count),
                  vector(wide_.data(), DType::kBFloat16, count));
    output.write(step.name, 2 * offset, wide_);
  });
}

void Rewriter::keep(const Step& step, SafetensorsWriter& output) {
  const std::string codes = spelled(plan_.family->spelling().codes, step.name);
  bool finite = true;
  each_piece(step.values, [&](std::int64_t offset, std::span<const std::byte> bytes) {
    finite = finite && all_finite(DType::kE4M3, bytes);
    output.write(codes, offset, bytes);
  });
  std::vector<float> scales;
  for (const WeightScales& matrix : scales_of(step)) {
    const WeightScales repeated = matrix.repeated(step.to);
    finite = finite && all_finite(repeated.values);
    scales.insert(scales.end(), repeated.values.begin(), repeated.values.end());
  }
  if (step.scale) advance(step.scale->bytes);
  write_scales(step, scales, output);
  if (!finite) report_.not_finite.push_back(step.name);
}

void Rewriter::cast(const Step& step, SafetensorsWriter& output) {
  const MatrixSizes sizes(step.values.shape);
  const bool anew = step.kind == Step::Kind::kRequantize, from_fp8 = anew && !step.small;
  const bool is_double = step.values.dtype == "F64";
  const DType dtype = step.small  ? DType::kFloat32
                      : from_fp8  ? fp8_of(step.values)
                      : is_double ? DType::kFloat32
                                  : *quantizable_dtype(*find_safetensors_dtype(step.values.dtype));
  const std::int64_t value_bytes = is_double ? sizeof(double) : size_of(dtype);
  const std::vector<WeightScales> old_scales =
      from_fp8 ? scales_of(step) : std::vector<WeightScales>();
  const std::string codes_name = spelled(plan_.family->spelling().codes, step.name);
  const std::int64_t elements = sizes.rows * sizes.cols;
  std::optional<SmallValues> small;
  std::vector<float> factors(sizes.matrices, 1.0F);
  if (step.small) small.emplace(data_, *step.small);
  if (step.small) factors = second_scales(data_, *step.small);
  std::vector<float> scales;
  bool finite = true;
  WeightChange change;
  for (std::int64_t index = 0; index < sizes.matrices; ++index) {
    const auto values = [&](const Tile& tile, bool again) {
      if (small) {
        const TensorView decoded = small->of(index, tile);
        if (!again) advance(small->bytes_read());
        return decoded;
      }
      input_.resize(tile.size() * value_bytes);
      for_each_run(tile, std::span(input_), [&](std::int64_t offset, std::span<std::byte> run) {
        data_.read(step.values, index * elements * value_bytes + offset, run);
      });
      if (!again) advance(std::ssize(input_));
      if (is_double) narrow(input_);
      const TensorView bytes = matrix(std::as_const(input_).data(), dtype, tile.rows, tile.cols);
      if (!from_fp8) return bytes;
      wide_.resize(tile.size() * sizeof(float));
      dequantize({bytes, old_scales[index].of(tile), step.from},
                 matrix(wide_.data(), DType::kFloat32, tile.rows, tile.cols));
      return matrix(std::as_const(wide_).data(), DType::kFloat32, tile.rows, tile.cols);
    };
    const auto codes = [&](std::int64_t offset, std::span<const std::byte> bytes) {
      output.write(codes_name, index * elements + offset, bytes);
    };
    const WeightScales made =
        (small ? exact_caster_ : caster_)
            .cast({sizes.rows, sizes.cols, step.to, from_fp8 ? 4 : value_bytes, values, codes,
                   anew ? &change : nullptr},
                  finite);
    for (const float scale : made.values) {
      scales.push_back(scale * factors[index]);
      if (!small || scales.back() / factors[index] == scale) continue;
      core::fail(ErrorCode::kBadFormat,
                 "{}: tensor {}: expected scales that FP32 holds, got {} times {}",
                 step.values.file.string(), quote(step.values.name), scale, factors[index]);
    }
  }
  if (step.scale) advance(step.scale->bytes);
  write_scales(step, scales, output);
  if (anew && (!small || change.changed > 0)) {
    report_.requantized.push_back(step.name);
    report_.changes[step.name] = change;
  }
  if (!finite) report_.not_finite.push_back(step.name);
}

std::vector<WeightScales> Rewriter::scales_of(const Step& step) {
  const MatrixSizes sizes(step.values.shape);
  const std::vector<float> all = step.scale ? floats_of(step.scale->dtype, data_.read(*step.scale))
                                            : std::vector<float>(sizes.matrices, 1.0F);
  if (step.scale) check("weights", *step.scale, all, &step.values);
  const std::int64_t each = std::ssize(all) / std::max<std::int64_t>(sizes.matrices, 1);
  std::vector<WeightScales> matrices;
  for (std::int64_t i = 0; i < sizes.matrices; ++i) {
    const auto begin = all.begin() + i * each;
    matrices.push_back({step.from, sizes.rows, sizes.cols, {begin, begin + each}});
  }
  return matrices;
}

void Rewriter::write_scales(const Step& step, const std::vector<float>& scales,
                            SafetensorsWriter& output) {
  output.write(spelled(plan_.family->spelling().scale, step.name), 0,
               std::as_bytes(std::span(scales)));
}

void Rewriter::write_input_scale(const Step& step, SafetensorsWriter& output) {
  const std::vector<float> scale =
      floats_of(step.input_scale->dtype, data_.read(*step.input_scale));
  check("inputs", *step.input_scale, scale);
  output.write(spelled(plan_.family->spelling().input_scale, step.name), 0,
               std::as_bytes(std::span(scale)));
  advance(step.input_scale->bytes);
}

void Rewriter::advance(std::int64_t bytes) {
  report_.input_bytes += bytes;
  if (progress_) progress_(report_.input_bytes, total_bytes_);
}

}  // namespace octofold::model
