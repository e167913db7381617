#include "jit/kernel_pack.h"

#include <cstdint>
#include <cstring>

#include "core/check.h"

namespace octofold::jit {
namespace {

// Of each kernel: its key and the size of the entry, then the entry.
struct Place {
  CacheKey key{};
  std::uint64_t size = 0;
};

CacheKey key_in_pack(const Program& program, const CacheKey& headers) {
  return key_of(program, headers, "");
}

CacheEntry entry_of(std::string_view bytes) {
  std::string fault;
  std::optional<CacheEntry> entry = parse_entry(bytes, fault);
  if (!entry)
    core::fail(ErrorCode::kInternal, "a precompiled kernel of the library is damaged: {}", fault);
  return *std::move(entry);
}

}  // namespace

KernelPack::KernelPack(std::string_view bytes) {
  while (!bytes.empty()) {
    Place place;
    const bool is_whole = bytes.size() >= sizeof(place);
    if (is_whole) {
      std::memcpy(&place, bytes.data(), sizeof(place));
      bytes.remove_prefix(sizeof(place));
    }
    if (!is_whole || place.size > bytes.size()) {
      core::fail(ErrorCode::kInternal, "the precompiled kernels of the library are cut short");
    }
    entries_.emplace(place.key, bytes.substr(0, place.size));
    bytes.remove_prefix(place.size);
  }
}

std::optional<Binary> KernelPack::find(const Program& program, const CacheKey& headers) const {
  const auto found = entries_.find(key_in_pack(program, headers));
  if (found == entries_.end()) return std::nullopt;
  return entry_of(found->second).binary;
}

std::vector<CacheEntry> KernelPack::entries() const {
  std::vector<CacheEntry> all;
  for (const auto& [key, bytes] : entries_) all.push_back(entry_of(bytes));
  return all;
}

std::string pack_of(std::span<const PackedKernel> kernels, const CacheKey& headers) {
  std::string bytes;
  for (const auto& [program, binary] : kernels) {
    const CacheKey key = key_in_pack(program, headers);
    const std::string entry = bytes_of({key, program.description, program.architecture, binary});
    const Place place{key, entry.size()};
    bytes.append(reinterpret_cast<const char*>(&place), sizeof(place)).append(entry);
  }
  return bytes;
}

}  // namespace octofold::jit
