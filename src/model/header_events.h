// From the events of a JSON parser to the tensors of a safetensors header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "model/safetensors_header.h"

namespace octofold::model {

/// Events instead of a document: a duplicate name shows, and text that is not a header is refused
/// at its first wrong token instead of being built in memory (a document takes 16 bytes or more for
/// each "0," of a hostile header). Each method throws Error(kBadFormat) where its event is not what
/// the format has at this place.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(std::string_view path) : path_(path) {}

  /// The tensors in the order of the header, their offsets unchecked.
  SafetensorsHeader header() && { return std::move(header_); }

  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(std::int64_t value) override;
  bool number_unsigned(std::uint64_t value) override;
  bool number_float(double value, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(nlohmann::json::binary_t& value) override;
  bool start_object(std::size_t size) override;
  bool key(std::string& value) override;
  bool end_object() override;
  bool start_array(std::size_t size) override;
  bool end_array() override;
  bool parse_error(std::size_t byte, const std::string& last_token,
                   const nlohmann::json::exception& error) override;

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
  static std::string_view describe(Expect expect);

  [[noreturn]] void reject(std::string_view got) const;
  [[noreturn]] void fail(std::string_view message) const;
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

}  // namespace octofold::model
