#include "model/safetensors_reader.h"

#include <algorithm>

#include "core/check.h"
#include "model/json_text.h"

namespace octofold::model {

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : file_(core::File::open_for_reading(path)) {
  if (file_.size() < kLengthBytes) {
    core::fail(ErrorCode::kBadFormat,
               "{}: expected the length of a header in the first {} bytes, got a file of {} bytes "
               "(an unfinished download?)",
               path.string(), kLengthBytes, file_.size());
  }
  std::byte prefix[kLengthBytes];
  file_.read_at(0, prefix);
  std::uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  }
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes) || length == 0) {
    std::string begin(static_cast<std::size_t>(std::min<std::int64_t>(file_.size(), 64)), '\0');
    file_.read_at(0, std::as_writable_bytes(std::span(begin)));
    const std::string what = foreign_content(begin);
    core::fail(ErrorCode::kBadFormat, "{}: expected a header of 2 to {} bytes, got {}",
               path.string(), kMaxHeaderBytes,
               what.empty() ? core::format("a length of {} (is it damaged?)", length) : what);
  }
  data_offset_ = kLengthBytes + static_cast<std::int64_t>(length);
  if (data_offset_ > file_.size()) {
    core::fail(ErrorCode::kBadFormat,
               "{}: expected a header of {} bytes, got a file that ends after {} of them (is "
               "it truncated?)",
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
