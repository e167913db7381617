#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/json_text.h"
#include "model/safetensors.h"

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

// Events instead of a document: a duplicate name shows, and text that is not a header is refused
// at its first wrong token instead of being built in memory (a document takes 16 bytes or more for
// each "0," of a hostile header). Each method throws Error(kBadFormat) where its event is not what
// the format has at this place.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(std::string_view path) : path_(path) {}

  /// The tensors in the order of the header, their offsets unchecked.
  SafetensorsHeader header() && { return std::move(header_); }

  bool null() override { reject("null"); }
  bool boolean(bool value) override { reject(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) override { reject(core::format("{}", value)); }
  bool number_unsigned(std::uint64_t value) override {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      reject(core::format("{}", value));
    }
    switch (expect_) {
      case Expect::kShapeItem: tensor().shape.push_back(static_cast<std::int64_t>(value)); break;
      case Expect::kOffsetsItem: offsets_.push_back(static_cast<std::int64_t>(value)); break;
      default: reject(core::format("{}", value));
    }
    return true;
  }

  bool number_float(double, const std::string& text) override { reject(quote(text)); }
  bool string(std::string& value) override {
    switch (expect_) {
      case Expect::kDType: {
        const std::optional<SafetensorsDType> dtype = find_safetensors_dtype(value);
        if (!dtype) fail(core::format("expected a dtype of the format, got {}", quote(value)));
        tensor().dtype = *dtype;
        expect_ = Expect::kField;
        break;
      }
      case Expect::kMetadataText:
        header_.metadata.emplace(metadata_name_, value);
        expect_ = Expect::kMetadataName;
        break;
      default: reject(core::format("the string {}", quote(value)));
    }
    return true;
  }

  bool binary(nlohmann::json::binary_t&) override { reject("binary data"); }
  bool start_object(std::size_t) override {
    switch (expect_) {
      case Expect::kHeader: expect_ = Expect::kTensorName; break;
      case Expect::kTensor:
        header_.tensors.emplace_back().name = entry_;
        fields_.clear();
        expect_ = Expect::kField;
        break;
      case Expect::kMetadata: expect_ = Expect::kMetadataName; break;
      default: reject("an object");
    }
    return true;
  }

  bool key(std::string& value) override {
    switch (expect_) {
      case Expect::kTensorName:
        entry_ = value;
        if (!names_.insert(value).second) fail("expected one entry of this name, got a second one");
        expect_ = value == "__metadata__" ? Expect::kMetadata : Expect::kTensor;
        break;
      case Expect::kField:
        if (value == "dtype") {
          expect_ = Expect::kDType;
        } else if (value == "shape") {
          expect_ = Expect::kShape;
        } else if (value == "data_offsets") {
          expect_ = Expect::kOffsets;
        } else {
          reject(quote(value));
        }
        if (!fields_.insert(value).second)
          fail(core::format("expected one {}, got a second", value));
        break;
      case Expect::kMetadataName:
        if (header_.metadata.contains(value)) {
          fail(core::format("expected one text named {}, got a second", quote(value)));
        }
        metadata_name_ = value;
        expect_ = Expect::kMetadataText;
        break;
      default: reject(quote(value));
    }
    return true;
  }

  bool end_object() override {
    if (expect_ == Expect::kField) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field))
          fail(core::format("expected {}, got an entry without", field));
      }
    }
    expect_ = Expect::kTensorName;
    return true;
  }

  bool start_array(std::size_t) override {
    switch (expect_) {
      case Expect::kShape: expect_ = Expect::kShapeItem; break;
      case Expect::kOffsets:
        offsets_.clear();
        expect_ = Expect::kOffsetsItem;
        break;
      default: reject("an array");
    }
    return true;
  }

  bool end_array() override {
    if (expect_ == Expect::kOffsetsItem) {
      if (offsets_.size() != 2) {
        fail(core::format("expected data_offsets to be [begin, end], got {} numbers",
                          offsets_.size()));
      }
      tensor().begin = offsets_[0];
      tensor().end = offsets_[1];
    }
    expect_ = Expect::kField;
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::json::exception&) override {
    fail_json_syntax(core::format("{}: header", path_), byte);
  }

 private:
  enum class Expect : std::uint8_t {
    kHeader,        // {
    kTensorName,    // the name of a tensor or }
    kTensor,        // { of a tensor
    kField,         // a field of a tensor or }
    kDType,         // a string
    kShape,         // [
    kShapeItem,     // an integer or ]
    kOffsets,       // [
    kOffsetsItem,   // an integer or ]
    kMetadata,      // { of __metadata__
    kMetadataName,  // a name or }
    kMetadataText,  // a string
  };
  static std::string_view describe(Expect expect) {
    switch (expect) {
      case Expect::kHeader: return "an object of tensors";
      case Expect::kTensorName: return "a name";
      case Expect::kTensor: return "an object with dtype, shape and data_offsets";
      case Expect::kField: return "dtype, shape or data_offsets";
      case Expect::kDType: return "dtype to be a string";
      case Expect::kShape: return "shape to be an array";
      case Expect::kShapeItem: return "shape to hold integers from 0 to 2^63 - 1";
      case Expect::kOffsets: return "data_offsets to be an array";
      case Expect::kOffsetsItem: return "data_offsets to hold integers from 0 to 2^63 - 1";
      case Expect::kMetadata: return "an object of strings";
      case Expect::kMetadataName: return "a name";
      case Expect::kMetadataText: return "only strings";
    }
    return "";
  }

  [[noreturn]] void reject(std::string_view got) const {
    fail(core::format("expected {}, got {}", describe(expect_), got));
  }

  [[noreturn]] void fail(std::string_view message) const {
    core::fail(ErrorCode::kBadFormat, "{}: {} {}: {}", path_,
               entry_ == "__metadata__" ? "header entry" : "tensor", quote(entry_), message);
  }

  TensorInfo& tensor() { return header_.tensors.back(); }

  std::string_view path_;
  SafetensorsHeader header_;
  Expect expect_ = Expect::kHeader;
  std::string entry_;  // the name at the top level that is being read
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
  std::vector<std::int64_t> offsets_;
  std::string metadata_name_;
};

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
