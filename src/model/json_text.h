// JSON from files that nobody vouches for.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace octofold::model {

/// `text` between quotes with control characters escaped and its end cut off where it is long: a
/// name out of a file, fit for a one-line message.
std::string quote(std::string_view text);

/// Several, up to ten of them.
std::string quoted(std::span<const std::string> names);

/// The kind of a file that begins so, if people have it in the place of safetensors or JSON, and
/// what to do then; empty: nothing that is known.
std::string foreign_content(std::string_view begin);

/// Checks what the JSON parser would let pass or describe with the offending bytes: `text` is
/// well-formed UTF-8 (RFC 3629) without NUL, and its first byte is '{'.
/// Throws Error(kBadFormat) that begins with `where`.
void require_json_object_text(std::string_view where, std::string_view text);

/// Throws the Error(kBadFormat) of a syntax error at `byte` (counted from 1).
[[noreturn]] void fail_json_syntax(std::string_view where, std::size_t byte);

/// Parses a file of at most 100 MB whose text is one JSON object.
/// Throws Error(kBadFormat) also for a name that occurs twice in one object and for nesting deeper
/// than any real file's; Error(kIo) where reading fails.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace octofold::model
