// The header of a safetensors file: which tensors it holds and where.
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors_dtype.h"

namespace octofold::model {

/// Bytes before the header: its length, a little-endian 64-bit integer.
inline constexpr std::int64_t kLengthBytes = 8;
/// Longest header that the reference implementation reads.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string name;
  SafetensorsDType dtype = SafetensorsDType::kU8;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< first byte, counted from the end of the header
  std::int64_t end = 0;    ///< one past the last byte

  std::int64_t byte_count() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Reads and validates a header whose file has `data_bytes` bytes after it. On return the tensors
/// lie end to end and cover the data exactly, and each has the size that its dtype and shape ask
/// for. Throws Error(kBadFormat) that names the file `path`, the tensor, what was expected and what
/// came.
SafetensorsHeader parse_header(std::string_view path, std::string_view text,
                               std::int64_t data_bytes);

/// Puts the tensors in the order of the reference implementation (types of larger alignment first,
/// then by name), which aligns each to its own type, and sets their offsets.
/// Throws Error(kInvalidArgument) for two tensors of one name or sizes beyond 64 bits.
void lay_out(SafetensorsHeader& header);

/// The text of the header, padded with spaces so that the data begins at a multiple of 8.
std::string serialize_header(const SafetensorsHeader& header);

}  // namespace octofold::model
