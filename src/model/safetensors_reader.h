// Reads safetensors files without holding them in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "model/safetensors_header.h"

namespace octofold::model {

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

}  // namespace octofold::model
