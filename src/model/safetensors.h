// Files in the safetensors format, of any size, and the index of several: their types, headers,
// what reads them and what writes them. Format: https://github.com/huggingface/safetensors (README,
// "Format").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "octofold/types.h"

#include "core/file.h"
#include "model/output_files.h"

namespace octofold::model {

/// In the order of the reference implementation, which is one of increasing alignment: writers sort
/// tensors by it. Sub-byte types are packed without padding between elements.
enum class SafetensorsDType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

namespace detail {
struct SafetensorsDTypeRow {
  std::string_view name;
  std::int64_t bits;
};
/// Indexed by SafetensorsDType.
inline constexpr std::array<SafetensorsDTypeRow, 22> kSafetensorsDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
}  // namespace detail

/// The name of a dtype, as the header of a file spells it.
constexpr std::string_view name(SafetensorsDType dtype) {
  return detail::kSafetensorsDTypes[static_cast<std::size_t>(dtype)].name;
}

/// Size of one element in bits.
constexpr std::int64_t bits_of(SafetensorsDType dtype) {
  return detail::kSafetensorsDTypes[static_cast<std::size_t>(dtype)].bits;
}

constexpr std::optional<SafetensorsDType> find_safetensors_dtype(std::string_view name) {
  for (std::size_t i = 0; i < detail::kSafetensorsDTypes.size(); ++i) {
    if (detail::kSafetensorsDTypes[i].name == name) return static_cast<SafetensorsDType>(i);
  }
  return std::nullopt;
}

/// The types that octofold::quantize() casts from.
constexpr std::optional<DType> quantizable_dtype(SafetensorsDType dtype) {
  switch (dtype) {
    case SafetensorsDType::kF32: return DType::kFloat32;
    case SafetensorsDType::kF16: return DType::kFloat16;
    case SafetensorsDType::kBF16: return DType::kBFloat16;
    default: return std::nullopt;
  }
}

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

class SafetensorsReader {
 public:
  /// Opens the file and validates all of its header, as parse_header() does.
  /// Throws Error(kBadFormat) for what is not safetensors and Error(kIo) for what cannot be read.
  explicit SafetensorsReader(const std::filesystem::path& path);

  /// In the order of their data, without gaps.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Bytes of all tensors together.
  std::int64_t data_bytes() const { return file_.size() - data_offset_; }
  /// The offset of the first tensor from the beginning of the file.
  std::int64_t data_offset() const { return data_offset_; }

  /// Reads the bytes of `tensor` from `offset` on, as many as `bytes` has.
  /// Throws Error(kIo), also where the file is shorter than when it was opened.
  void read(const TensorInfo& tensor, std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  core::File file_;
  SafetensorsHeader header_;
  std::int64_t data_offset_ = 0;
};

/// The header comes first in the file, and so all shapes must be known first; data may then come in
/// any order. Without finish() nothing remains.
class SafetensorsWriter {
 public:
  /// tensors: name, dtype and shape of each; their offsets are set here, by lay_out().
  /// Throws Error(kIo) for a folder or a disk that has no place for the file, and
  /// Error(kInvalidArgument) for tensors that no file can hold.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// Bytes of all tensors together.
  std::int64_t data_bytes() const;

  /// Writes bytes of the tensor `name` from `offset` within it on. Each byte is to come once.
  void write(std::string_view name, std::int64_t offset, std::span<const std::byte> bytes);

  /// The file appears. Throws Error(kIo) if its path exists by now, and Error(kInternal) unless
  /// write() was given as many bytes as the tensors have.
  void finish();

 private:
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, const TensorInfo*> by_name_;
  std::int64_t data_offset_ = 0;
  std::int64_t written_ = 0;
  StagedFile staged_;
};

/// A `*.safetensors.index.json`: {"metadata": {…}, "weight_map": {tensor: file}}.
class ShardIndex {
 public:
  /// Throws Error(kBadFormat) for what is not such an index, or for a shard that is not a plain
  /// file name: the files of a checkpoint lie beside its index.
  explicit ShardIndex(const std::filesystem::path& path);

  /// Names of the shards, and of the tensors that the index puts in each.
  const std::map<std::string, std::set<std::string>>& shards() const { return shards_; }
  const nlohmann::json& metadata() const { return metadata_; }

  /// Opens a shard. Throws Error(kBadFormat) unless it holds exactly the tensors that the index
  /// says.
  SafetensorsReader open(const std::string& shard) const;

 private:
  [[noreturn]] void fail(std::string_view message) const;

  std::filesystem::path path_;
  std::map<std::string, std::set<std::string>> shards_;
  nlohmann::json metadata_;
};

}  // namespace octofold::model
