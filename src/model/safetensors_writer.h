// Writes safetensors files of any size, whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/safetensors_header.h"
#include "model/staged_output.h"

namespace octofold::model {

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

}  // namespace octofold::model
