#include "model/checkpoint_converter.h"

#include <algorithm>
#include <span>
#include <utility>

#include "octofold/casts.h"

#include "core/check.h"
#include "core/log.h"
#include "core/scale_layout.h"
#include "model/json_text.h"

namespace octofold::model {
namespace {

/// Input in memory at a time: large enough for all threads of quantize(), and 128 rows of 65536
/// floats, so that all but the widest matrices are read and written in one piece per tile.
constexpr std::int64_t kTileBytes = 32 << 20;

/// A rectangle of a row-major matrix.
struct Tile {
  std::int64_t row;
  std::int64_t col;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t matrix_cols;
};

/// Calls transfer(offset in the matrix in bytes, part of `buffer`) for the contiguous runs of a
/// tile whose rows lie end to end in `buffer`.
template <typename Byte, typename Transfer>
void for_each_run(const Tile& tile, std::span<Byte> buffer, Transfer transfer) {
  const std::int64_t element_bytes =
      static_cast<std::int64_t>(buffer.size()) / (tile.rows * tile.cols);
  const std::int64_t runs = tile.cols == tile.matrix_cols ? 1 : tile.rows;
  const std::size_t run_bytes = buffer.size() / runs;
  for (std::int64_t i = 0; i < runs; ++i) {
    transfer(((tile.row + i) * tile.matrix_cols + tile.col) * element_bytes,
             buffer.subspan(i * run_bytes, run_bytes));
  }
}

}  // namespace

CheckpointConverter::CheckpointConverter(const QuantizeCheckpointOptions& options,
                                         std::unordered_set<std::string> names,
                                         std::int64_t total_bytes)
    : options_(options), selection_(options), names_(std::move(names)), total_bytes_(total_bytes) {
  for (const std::string& pattern : options_.skip) {
    if (std::none_of(names_.begin(), names_.end(),
                     [&](const std::string& name) { return matches(pattern, name); })) {
      core::log(LogLevel::kWarning, "skip pattern {} matches no tensor of the checkpoint",
                quote(pattern));
    }
  }
  advance(0);
}

std::vector<std::string> CheckpointConverter::convert(const SafetensorsReader& input,
                                                      const std::filesystem::path& output) {
  std::vector<TensorInfo> tensors = plan(input);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);

  SafetensorsWriter writer(output, std::move(tensors), input.metadata());
  for (const TensorInfo& tensor : input.tensors()) {
    if (selection_.contains(tensor)) {
      quantize_weight(input, tensor, writer);
      report_.quantized.push_back(tensor.name);
    } else {
      copy(input, tensor, writer);
      report_.copied.push_back(tensor.name);
    }
  }
  writer.finish();
  report_.output_bytes += writer.data_bytes();
  return names;
}

std::vector<TensorInfo> CheckpointConverter::plan(const SafetensorsReader& input) const {
  std::vector<TensorInfo> tensors;
  for (const TensorInfo& tensor : input.tensors()) {
    if (!selection_.contains(tensor)) {
      tensors.push_back(tensor);
      continue;
    }
    if (names_.contains(scale_name(tensor.name))) {
      core::fail(ErrorCode::kInvalidArgument,
                 "quantize_checkpoint: argument 'input': expected no tensor named {}, which the "
                 "scales of {} are to be, got one",
                 quote(scale_name(tensor.name)), quote(tensor.name));
    }
    tensors.push_back(fp8_weight(tensor));
    tensors.push_back(fp8_scale(tensor));
  }
  return tensors;
}

void CheckpointConverter::copy(const SafetensorsReader& input, const TensorInfo& tensor,
                               SafetensorsWriter& output) {
  for (std::int64_t offset = 0; offset < tensor.byte_count();) {
    input_.resize(std::min(kTileBytes, tensor.byte_count() - offset));
    input.read(tensor, offset, input_);
    output.write(tensor.name, offset, input_);
    offset += std::ssize(input_);
    advance(std::ssize(input_));
  }
}

void CheckpointConverter::quantize_weight(const SafetensorsReader& input, const TensorInfo& tensor,
                                          SafetensorsWriter& output) {
  const std::int64_t rows = tensor.shape[0];
  const std::int64_t cols = tensor.shape[1];
  const DType dtype = *quantizable_dtype(tensor.dtype);
  const QuantizeOptions cast{.profile = options_.profile, .power_of_two = options_.power_of_two};

  // Tiles begin at multiples of 128, so that no scale block is cut in two.
  const auto whole_blocks = [](std::int64_t size) { return size / kScaleBlock * kScaleBlock; };
  const std::int64_t tile_cols =
      std::min(cols, whole_blocks(kTileBytes / (kScaleBlock * size_of(dtype))));
  const std::int64_t tile_rows = whole_blocks(kTileBytes / (tile_cols * size_of(dtype)));

  for (std::int64_t row = 0; row < rows; row += tile_rows) {
    for (std::int64_t col = 0; col < cols; col += tile_cols) {
      const Tile tile{row, col, std::min(tile_rows, rows - row), std::min(tile_cols, cols - col),
                      cols};
      const Tile scale_tile{
          row / kScaleBlock, col / kScaleBlock, core::ceil_divide(tile.rows, kScaleBlock),
          core::ceil_divide(tile.cols, kScaleBlock), core::ceil_divide(cols, kScaleBlock)};
      input_.resize(tile.rows * tile.cols * size_of(dtype));
      codes_.resize(tile.rows * tile.cols);
      scales_.resize(scale_tile.rows * scale_tile.cols);

      for_each_run(tile, std::span(input_), [&](std::int64_t offset, std::span<std::byte> run) {
        input.read(tensor, offset, run);
      });
      quantize(matrix(std::as_const(input_).data(), dtype, tile.rows, tile.cols),
               {.rows =
                    MutableScaledTensorView{
                        matrix(codes_.data(), DType::kE4M3, tile.rows, tile.cols),
                        matrix(scales_.data(), DType::kFloat32, scale_tile.rows, scale_tile.cols),
                        Granularity::kBlock128x128}},
               cast);
      const auto write_to = [&](const std::string& name) {
        return [&output, name](std::int64_t offset, std::span<const std::byte> run) {
          output.write(name, offset, run);
        };
      };
      for_each_run(tile, std::span<const std::byte>(codes_), write_to(tensor.name));
      for_each_run(scale_tile, std::as_bytes(std::span(scales_)),
                   write_to(scale_name(tensor.name)));
      advance(std::ssize(input_));
    }
  }
}

void CheckpointConverter::advance(std::int64_t bytes) {
  report_.input_bytes += bytes;
  if (options_.progress) options_.progress(report_.input_bytes, total_bytes_);
}

}  // namespace octofold::model
