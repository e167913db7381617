#include "model/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/check.h"
#include "model/header_events.h"
#include "model/json_text.h"

namespace octofold::model {
namespace {

/// Bytes of a tensor; empty where they are beyond 63 bits or not a whole number.
std::optional<std::int64_t> byte_count(SafetensorsDType dtype,
                                       const std::vector<std::int64_t>& shape) {
  std::int64_t bits = bits_of(dtype);
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string describe(const TensorInfo& tensor) {
  return core::format("{} [{}]", name(tensor.dtype), fmt::join(tensor.shape, ", "));
}

void check_tensor(std::string_view path, const TensorInfo& tensor, std::int64_t data_bytes) {
  const auto fail = [&](const std::string& expected) {
    core::fail(ErrorCode::kBadFormat, "{}: tensor {}: expected {}, got data_offsets [{}, {}]", path,
               quote(tensor.name), expected, tensor.begin, tensor.end);
  };
  const std::optional<std::int64_t> bytes = byte_count(tensor.dtype, tensor.shape);
  if (!bytes) {
    core::fail(ErrorCode::kBadFormat,
               "{}: tensor {}: expected a size in whole bytes below 2^60, got {}", path,
               quote(tensor.name), describe(tensor));
  }
  if (tensor.begin > tensor.end) fail("a begin that is not after the end");
  if (tensor.end > data_bytes) {
    fail(core::format("an end within the {} bytes of data that the file has (is it truncated?)",
                      data_bytes));
  }
  if (tensor.byte_count() != *bytes) {
    fail(core::format("{} bytes for {}", *bytes, describe(tensor)));
  }
}

/// tensors: sorted by where they begin.
void check_coverage(std::string_view path, const std::vector<TensorInfo>& tensors,
                    std::int64_t data_bytes) {
  std::int64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin < covered) {
      core::fail(
          ErrorCode::kBadFormat,
          "{}: tensor {}: expected data of its own, got data_offsets [{}, {}], which overlap "
          "tensor {} [{}, {}]",
          path, quote(tensor.name), tensor.begin, tensor.end, quote(previous->name),
          previous->begin, previous->end);
    }
    if (tensor.begin > covered) {
      core::fail(ErrorCode::kBadFormat,
                 "{}: tensor {}: expected data from byte {} on, got data_offsets [{}, {}], which "
                 "leave a hole",
                 path, quote(tensor.name), covered, tensor.begin, tensor.end);
    }
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != data_bytes) {
    core::fail(ErrorCode::kBadFormat,
               "{}: expected {} bytes of data, the sum of all tensors, got {} bytes", path, covered,
               data_bytes);
  }
}

std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

SafetensorsHeader parse_header(std::string_view path, std::string_view text,
                               std::int64_t data_bytes) {
  require_json_object_text(core::format("{}: header", path), text);
  HeaderEvents events(path);
  nlohmann::json::sax_parse(text, &events);
  SafetensorsHeader header = std::move(events).header();

  for (const TensorInfo& tensor : header.tensors) check_tensor(path, tensor, data_bytes);
  // An empty tensor sorts before the one that begins where it lies.
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& left, const TensorInfo& right) {
                     return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
                   });
  check_coverage(path, header.tensors, data_bytes);
  return header;
}

void lay_out(SafetensorsHeader& header) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& left, const TensorInfo& right) {
              if (left.dtype != right.dtype) return left.dtype > right.dtype;
              return left.name < right.name;
            });
  std::int64_t offset = 0;
  for (TensorInfo& tensor : header.tensors) {
    tensor.begin = offset;
    const std::optional<std::int64_t> bytes = byte_count(tensor.dtype, tensor.shape);
    if (!bytes || __builtin_add_overflow(offset, *bytes, &offset)) {
      core::fail(ErrorCode::kInvalidArgument,
                 "tensor {}: expected a size in whole bytes below 2^60, got {}", quote(tensor.name),
                 describe(tensor));
    }
    tensor.end = offset;
  }
}

std::string serialize_header(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto separate = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!header.metadata.empty()) {
    text += "\"__metadata__\":" + nlohmann::json(header.metadata).dump();
  }
  for (const TensorInfo& tensor : header.tensors) {
    separate();
    text += core::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                         json_string(tensor.name), name(tensor.dtype), fmt::join(tensor.shape, ","),
                         tensor.begin, tensor.end);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace octofold::model
