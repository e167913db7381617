#include "model/safetensors_reader.h"

#include "core/check.h"

namespace octofold::model {

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : file_(File::open_for_reading(path)) {
  if (file_.size() < kLengthBytes) {
    core::fail(ErrorCode::kBadFormat,
               "{}: expected the length of a header in the first {} bytes, got a file of {} bytes",
               path.string(), kLengthBytes, file_.size());
  }
  std::byte prefix[kLengthBytes];
  file_.read_at(0, prefix);
  std::uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  }
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    core::fail(ErrorCode::kBadFormat,
               "{}: expected a header of at most {} bytes, got a length of {}", path.string(),
               kMaxHeaderBytes, length);
  }
  data_offset_ = kLengthBytes + static_cast<std::int64_t>(length);
  if (data_offset_ > file_.size()) {
    core::fail(ErrorCode::kBadFormat,
               "{}: expected a header of {} bytes, got a file that ends after {} of them",
               path.string(), length, file_.size() - kLengthBytes);
  }
  std::string text(length, '\0');
  file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  header_ = parse_header(path.string(), text, data_bytes());
}

void SafetensorsReader::read(const TensorInfo& tensor, std::int64_t offset,
                             std::span<std::byte> bytes) const {
  file_.read_at(data_offset_ + tensor.begin + offset, bytes);
}

}  // namespace octofold::model
