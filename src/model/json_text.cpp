#include "model/json_text.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/file.h"

namespace octofold::model {
namespace {

/// Printing JSON recurses, so that a hostile depth would overflow the stack.
constexpr int kMaxDepth = 100;

/// Offset of the first byte that does not belong to a well-formed character, or npos.
std::size_t find_malformed_utf8(std::string_view text) {
  constexpr std::uint32_t kSmallestOfLength[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const std::uint8_t lead = byte(i);
    const std::size_t length = lead < 0x80             ? 1
                               : (lead & 0xE0) == 0xC0 ? 2
                               : (lead & 0xF0) == 0xE0 ? 3
                               : (lead & 0xF8) == 0xF0 ? 4
                                                       : 0;
    if (length == 0 || length > text.size() - i) return i;
    std::uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (std::size_t j = 1; j < length; ++j) {
      if ((byte(i + j) & 0xC0) != 0x80) return i;
      code = code << 6 | (byte(i + j) & 0x3Fu);
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if (code < kSmallestOfLength[length] || code > 0x10FFFF || surrogate) return i;
    i += length;
  }
  return std::string_view::npos;
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  const bool cut = text.size() > kLongest;
  const std::string json = nlohmann::json(text.substr(0, kLongest))
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
  return core::format("'{}{}'", std::string_view(json).substr(1, json.size() - 2), cut ? "…" : "");
}

std::string quoted(std::span<const std::string> names) {
  constexpr std::size_t kMost = 10;
  std::string text;
  for (const std::string& name : names.first(std::min(kMost, names.size()))) {
    text.append(text.empty() ? "" : ", ").append(quote(name));
  }
  if (names.size() > kMost) text += core::format(" and {} more", names.size() - kMost);
  return text;
}

std::string foreign_content(std::string_view begin) {
  constexpr std::string_view kTorch =
      "a file of torch.save(): load it with torch and write it with safetensors' save_file()";
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"version https://git-lfs", "a pointer of Git LFS: get the file itself by `git lfs pull`"},
      {"<", "a page of HTML or XML, as a failed download leaves: get the file again"},
      {"PK\x03\x04", kTorch},
      {"\x80", kTorch},
      {"GGUF", "GGUF, with other quantizations: take the model from which it was made"},
      {"\x1f\x8b", "an archive: unpack it"},
      {std::string_view("\0\0\0\0\0\0\0\0\0", 9), "zeros, as an unfinished download has"}};
  const std::string_view text =
      begin.substr(std::min(begin.find_first_not_of(" \t\r\n\xEF\xBB\xBF"), begin.size()));
  for (const auto& [kind, what] : kKinds) {
    if (text.starts_with(kind)) return std::string(what);
  }
  const bool is_text = std::all_of(begin.begin(), begin.end(), [](unsigned char c) {
    return std::isprint(c) != 0 || std::isspace(c) != 0;
  });
  return is_text ? core::format("the text {}", quote(begin)) : "";
}

void require_json_object_text(std::string_view where, std::string_view text) {
  if (!text.starts_with('{')) {
    const std::string what = foreign_content(text.substr(0, 64));
    core::fail(ErrorCode::kBadFormat, "{}: expected a JSON object that begins with '{{', got {}",
               where,
               text.empty()   ? "nothing"
               : what.empty() ? quote(text.substr(0, 1))
                              : what);
  }
  if (const std::size_t at = find_malformed_utf8(text); at != std::string_view::npos) {
    core::fail(ErrorCode::kBadFormat, "{}: expected UTF-8, got the stray byte 0x{:02X} at {}",
               where, static_cast<std::uint8_t>(text[at]), at);
  }
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    core::fail(ErrorCode::kBadFormat, "{}: expected JSON, got a NUL byte at {}", where, at);
  }
}

void fail_json_syntax(std::string_view where, std::size_t byte) {
  core::fail(ErrorCode::kBadFormat, "{}: not valid JSON at byte {}", where, byte);
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  const std::string where = path.string();
  const std::string text = core::File::open_for_reading(path).read_text();
  require_json_object_text(where, text);

  using Json = nlohmann::json;
  std::vector<std::unordered_set<std::string>> names;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) {
      core::fail(ErrorCode::kBadFormat, "{}: JSON nested deeper than {} levels", where, kMaxDepth);
    }
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key &&
        !names.back().insert(value.get<std::string>()).second) {
      core::fail(ErrorCode::kBadFormat, "{}: the name {} occurs twice in one object", where,
                 quote(value.get_ref<const std::string&>()));
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    fail_json_syntax(where, error.byte);
  } catch (const Json::out_of_range&) {
    core::fail(ErrorCode::kBadFormat, "{}: a number is out of the range of a double", where);
  }
}

}  // namespace octofold::model
