// One compiled kernel as a file: all or nothing, and believed only after it has been checked.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/stat.h>

#include "jit/program.h"

namespace octofold::jit {

/// XXH3-128 of all that a binary depends on: sources, kernel, architecture, compiler, options.
struct CacheKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  std::string text() const;  ///< 32 hexadecimal digits
  friend auto operator<=>(const CacheKey&, const CacheKey&) = default;
};

/// The hash of the headers, computed once for all programs.
CacheKey digest(std::span<const Header> headers);
CacheKey key_of(const Program& program, const CacheKey& headers, std::string_view compiler);

struct CacheEntry {
  CacheKey key{};
  std::string description{};
  std::string architecture{};
  Binary binary{};
};

inline constexpr std::string_view kEntrySuffix = ".kernel";
inline constexpr std::string_view kTemporarySuffix = ".kernel.tmp";

/// An entry as a file has it, and back: nothing, and in `reason` what is wrong with the bytes.
std::string bytes_of(const CacheEntry& entry);
std::optional<CacheEntry> parse_entry(std::string_view bytes, std::string& reason);

/// Why what has this status may hold what others than this user and root have written; empty: it
/// does not. The group of a user's own, whose number is the user's, is no other. Of a folder in
/// which nobody replaces another's files, as in /tmp, each file answers for itself.
std::string distrust_of(const struct stat& status);

/// The entry, or nothing and in `reason` what is wrong with the file, which is a regular one that
/// is not distrusted: empty where there is none.
std::optional<CacheEntry> read_entry(const std::filesystem::path& file, std::string& reason);

/// Writes beside `file` and renames. Throws Error(kIo) and leaves nothing behind.
void write_entry(const std::filesystem::path& file, const CacheEntry& entry);

}  // namespace octofold::jit
