#include "model/safetensors_writer.h"

#include <utility>

#include "core/check.h"
#include "model/json_text.h"

namespace octofold::model {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : header_{std::move(tensors), metadata}, staged_(path) {
  lay_out(header_);
  for (const TensorInfo& tensor : header_.tensors) {
    if (!by_name_.emplace(tensor.name, &tensor).second) {
      core::fail(ErrorCode::kInvalidArgument, "{}: expected one tensor named {}, got two",
                 path.string(), quote(tensor.name));
    }
  }
  const std::string text = serialize_header(header_);
  const auto length = static_cast<std::int64_t>(text.size());
  if (length > kMaxHeaderBytes) {
    core::fail(ErrorCode::kInvalidArgument,
               "{}: expected tensors whose header has at most {} bytes, got {}", path.string(),
               kMaxHeaderBytes, length);
  }
  data_offset_ = kLengthBytes + length;
  staged_.file().reserve(data_offset_ + data_bytes());

  std::byte prefix[kLengthBytes];
  for (int i = 0; i < kLengthBytes; ++i) prefix[i] = static_cast<std::byte>(length >> (8 * i));
  staged_.file().write_at(0, prefix);
  staged_.file().write_at(kLengthBytes, std::as_bytes(std::span(text)));
}

std::int64_t SafetensorsWriter::data_bytes() const {
  return header_.tensors.empty() ? 0 : header_.tensors.back().end;
}

void SafetensorsWriter::write(std::string_view name, std::int64_t offset,
                              std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  const auto found = by_name_.find(name);
  if (found == by_name_.end() || offset < 0 || offset + size > found->second->byte_count()) {
    core::fail(ErrorCode::kInternal, "safetensors writer: {} bytes at {} are not in tensor {}",
               size, offset, quote(name));
  }
  staged_.file().write_at(data_offset_ + found->second->begin + offset, bytes);
  written_ += size;
}

void SafetensorsWriter::finish() {
  if (written_ != data_bytes()) {
    core::fail(ErrorCode::kInternal, "safetensors writer: expected {} bytes of data, got {}",
               data_bytes(), written_);
  }
  staged_.publish();
}

}  // namespace octofold::model
