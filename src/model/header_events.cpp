#include "model/header_events.h"

#include <limits>
#include <optional>

#include "core/check.h"
#include "model/json_text.h"

namespace octofold::model {

std::string_view HeaderEvents::describe(Expect expect) {
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

void HeaderEvents::fail(std::string_view message) const {
  core::fail(ErrorCode::kBadFormat, "{}: {} {}: {}", path_,
             entry_ == "__metadata__" ? "header entry" : "tensor", quote(entry_), message);
}

void HeaderEvents::reject(std::string_view got) const {
  fail(core::format("expected {}, got {}", describe(expect_), got));
}

bool HeaderEvents::null() { reject("null"); }
bool HeaderEvents::boolean(bool value) { reject(value ? "true" : "false"); }
bool HeaderEvents::number_integer(std::int64_t value) { reject(core::format("{}", value)); }
bool HeaderEvents::number_float(double, const std::string& text) { reject(quote(text)); }
bool HeaderEvents::binary(nlohmann::json::binary_t&) { reject("binary data"); }

bool HeaderEvents::number_unsigned(std::uint64_t value) {
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

bool HeaderEvents::string(std::string& value) {
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

bool HeaderEvents::start_object(std::size_t) {
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

bool HeaderEvents::key(std::string& value) {
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
      if (!fields_.insert(value).second) fail(core::format("expected one {}, got a second", value));
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

bool HeaderEvents::end_object() {
  if (expect_ == Expect::kField) {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) fail(core::format("expected {}, got an entry without", field));
    }
  }
  expect_ = Expect::kTensorName;
  return true;
}

bool HeaderEvents::start_array(std::size_t) {
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

bool HeaderEvents::end_array() {
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

bool HeaderEvents::parse_error(std::size_t byte, const std::string&,
                               const nlohmann::json::exception&) {
  fail_json_syntax(core::format("{}: header", path_), byte);
}

}  // namespace octofold::model
