#include "model/safetensors.h"

#include <algorithm>
#include <utility>

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

namespace fs = std::filesystem;
void ShardIndex::fail(std::string_view message) const {
  core::fail(ErrorCode::kBadFormat, "{}: {}", path_.string(), message);
}

ShardIndex::ShardIndex(const fs::path& path) : path_(path) {
  const nlohmann::json index = read_json_object(path);
  metadata_ = index.value("metadata", nlohmann::json::object());
  if (!metadata_.is_object()) {
    fail(core::format("metadata: expected an object, got {}", metadata_.type_name()));
  }
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    fail(core::format("weight_map: expected an object, got {}",
                      map == index.end() ? "an index without it" : map->type_name()));
  }
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      fail(core::format("weight_map: tensor {}: expected the name of a file, got {}", quote(tensor),
                        file.type_name()));
    }
    const auto& shard = file.get_ref<const std::string&>();
    if (!shard.ends_with(".safetensors") ||
        shard.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      fail(core::format(
          "weight_map: tensor {}: expected a .safetensors file beside the index, got {}",
          quote(tensor), quote(shard)));
    }
    shards_[shard].insert(tensor);
  }
}

SafetensorsReader ShardIndex::open(const std::string& shard) const {
  SafetensorsReader reader(path_.parent_path() / shard);
  std::set<std::string> expected = shards_.at(shard);
  for (const TensorInfo& tensor : reader.tensors()) {
    if (expected.erase(tensor.name) == 0) {
      fail(core::format("weight_map: expected an entry that puts tensor {} in {}, where it is",
                        quote(tensor.name), quote(shard)));
    }
  }
  if (!expected.empty()) {
    fail(core::format("weight_map: expected tensor {} in {}, got a file without it",
                      quote(*expected.begin()), quote(shard)));
  }
  return reader;
}

}  // namespace octofold::model
