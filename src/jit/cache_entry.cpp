#include "jit/cache_entry.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/check.h"
#include "core/file.h"
#include "core/format.h"

namespace octofold::jit {
namespace {

// The file: this, then description, architecture, symbol and image without separators. Numbers as
// the machine has them: machines of one kind share caches.
struct EntryHead {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  ResourceUse resources;  // no padding behind it: its bytes would be left to chance
  CacheKey key;
  std::uint64_t description_size = 0;
  std::uint64_t architecture_size = 0;
  std::uint64_t symbol_size = 0;
  std::uint64_t image_size = 0;
  std::uint64_t checksum = 0;  // XXH3-64 of the whole file with 0 here

  static constexpr std::array<char, 8> kMagic = {'O', 'C', 'T', 'O', 'F', 'O', 'L', 'D'};
  static constexpr std::uint32_t kVersion = 2;
};
static_assert(sizeof(EntryHead) == 88);

constexpr std::int64_t kMostBytes = 64 << 20;  // the largest kernel has less than 1 MB

// The fault of a file of these bytes; empty if it has none.
std::string fault_of(std::string_view bytes, EntryHead& head) {
  if (bytes.size() < sizeof(head)) return core::format("it has only {} bytes", bytes.size());
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != EntryHead::kMagic) return "it is not a cache entry";
  if (head.version != EntryHead::kVersion) {
    return core::format("it has format version {}, expected {}", head.version, EntryHead::kVersion);
  }
  std::size_t rest = bytes.size() - sizeof(head);
  for (const std::uint64_t size :
       {head.description_size, head.architecture_size, head.symbol_size, head.image_size}) {
    if (size > rest) return "it is cut short";
    rest -= size;
  }
  if (rest != 0) return core::format("{} bytes follow its end", rest);
  std::string unsealed(bytes);
  std::memset(unsealed.data() + offsetof(EntryHead, checksum), 0, sizeof(head.checksum));
  if (XXH3_64bits(unsealed.data(), unsealed.size()) != head.checksum) return "its checksum differs";
  return "";
}

class Hash {
 public:
  Hash() { XXH3_128bits_reset(&state_); }

  // With its length, so that no two lists of texts run together to the same bytes.
  void add(std::string_view text) {
    const std::uint64_t size = text.size();
    XXH3_128bits_update(&state_, &size, sizeof(size));
    XXH3_128bits_update(&state_, text.data(), text.size());
  }

  CacheKey key() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {hash.high64, hash.low64};
  }

 private:
  XXH3_state_t state_;
};

}  // namespace

std::string CacheKey::text() const { return core::format("{:016x}{:016x}", high, low); }

CacheKey digest(std::span<const Header> headers) {
  Hash hash;
  for (const Header& header : headers) {
    hash.add(header.name);
    hash.add(header.text);
  }
  return hash.key();
}

CacheKey key_of(const Program& program, const CacheKey& headers, std::string_view compiler) {
  const std::string sources = headers.text();
  Hash hash;
  for (const std::string_view part :
       {std::string_view(sources), compiler, std::string_view(program.header),
        std::string_view(program.kernel), std::string_view(program.architecture)}) {
    hash.add(part);
  }
  return hash.key();
}

std::optional<CacheEntry> parse_entry(std::string_view bytes, std::string& reason) {
  EntryHead head;
  reason = fault_of(bytes, head);
  if (!reason.empty()) return std::nullopt;
  std::string_view rest = bytes.substr(sizeof(head));
  const auto take = [&](std::uint64_t size) {
    const std::string_view part = rest.substr(0, size);
    rest.remove_prefix(size);
    return part;
  };
  CacheEntry entry{.key = head.key};
  entry.description = take(head.description_size);
  entry.architecture = take(head.architecture_size);
  entry.binary.symbol = take(head.symbol_size);
  const std::string_view image = take(head.image_size);
  entry.binary.image.assign(image.begin(), image.end());
  entry.binary.resources = head.resources;
  return entry;
}

std::string bytes_of(const CacheEntry& entry) {
  EntryHead head{.resources = entry.binary.resources,
                 .key = entry.key,
                 .description_size = entry.description.size(),
                 .architecture_size = entry.architecture.size(),
                 .symbol_size = entry.binary.symbol.size(),
                 .image_size = entry.binary.image.size()};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.append(entry.description).append(entry.architecture).append(entry.binary.symbol);
  bytes.append(entry.binary.image.begin(), entry.binary.image.end());
  head.checksum = XXH3_64bits(bytes.data(), bytes.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  return bytes;
}

std::string distrust_of(const struct stat& status) {
  if (status.st_uid != 0 && status.st_uid != geteuid()) {
    return core::format("it belongs to user {}, expected this one ({}) or root", status.st_uid,
                        geteuid());
  }
  const bool is_sticky = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
  const bool has_own_group = status.st_gid == status.st_uid;
  const mode_t others = has_own_group ? S_IWOTH : S_IWGRP | S_IWOTH;
  if (is_sticky || (status.st_mode & others) == 0) return "";
  return core::format("its mode {:04o} lets others write to it, expected none (chmod go-w)",
                      status.st_mode & 07777);
}

std::optional<CacheEntry> read_entry(const std::filesystem::path& file, std::string& reason) {
  try {
    const core::File open = core::File::open_for_reading(file);
    struct stat status{};
    fstat(open.descriptor(), &status);
    reason = distrust_of(status);
    return reason.empty() ? parse_entry(open.read_text(kMostBytes), reason) : std::nullopt;
  } catch (const Error& error) {
    const bool is_absent = error.system_error() == ENOENT || error.system_error() == ENOTDIR;
    reason = is_absent ? "" : error.what();
    return std::nullopt;
  }
}

void write_entry(const std::filesystem::path& file, const CacheEntry& entry) {
  std::filesystem::path temporary = file;
  temporary.replace_extension(kTemporarySuffix);
  core::replace_text_file(file, temporary, bytes_of(entry));
}

}  // namespace octofold::jit
