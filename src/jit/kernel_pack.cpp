#include "jit/kernel_pack.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <zstd.h>

#include "core/check.h"
#include "jit/nvrtc.h"

namespace octofold::jit {
namespace {

// The CUDA, an int; then of each kernel: its key and the size of the entry, then the entry.
struct Place {
  CacheKey key{};
  std::uint64_t size = 0;
};

CacheKey key_in_pack(const Program& program, const CacheKey& headers) {
  return key_of(program, headers, "");
}

[[noreturn]] void fail_as_damaged(std::string_view fault) {
  core::fail(ErrorCode::kInternal, "the precompiled kernels of the library are damaged: {}", fault);
}

CacheEntry entry_of(std::string_view bytes) {
  std::string fault;
  std::optional<CacheEntry> entry = parse_entry(bytes, fault);
  if (!entry) fail_as_damaged(fault);
  return *std::move(entry);
}

// The built-in checksum tells of damage.
std::string compressed(std::string_view bytes) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 19);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string result(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size =
      ZSTD_compress2(context.get(), result.data(), result.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(size)) core::fail(ErrorCode::kInternal, "zstd: {}", ZSTD_getErrorName(size));
  result.resize(size);
  return result;
}

std::vector<char> decompressed(std::string_view bytes) {
  if (bytes.empty()) return {};
  const unsigned long long size = ZSTD_getFrameContentSize(bytes.data(), bytes.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) {
    fail_as_damaged("no zstd frame");
  }
  std::vector<char> result(size);
  const std::size_t read =
      ZSTD_decompress(result.data(), result.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(read)) fail_as_damaged(ZSTD_getErrorName(read));
  return result;
}

}  // namespace

KernelPack::KernelPack(std::string_view compressed) : bytes_(decompressed(compressed)) {
  std::string_view bytes(bytes_.data(), bytes_.size());
  if (bytes.empty()) return;
  if (bytes.size() < sizeof(cuda_)) fail_as_damaged("cut short");
  std::memcpy(&cuda_, bytes.data(), sizeof(cuda_));
  bytes.remove_prefix(sizeof(cuda_));
  while (!bytes.empty()) {
    Place place;
    const bool is_whole = bytes.size() >= sizeof(place);
    if (is_whole) {
      std::memcpy(&place, bytes.data(), sizeof(place));
      bytes.remove_prefix(sizeof(place));
    }
    if (!is_whole || place.size > bytes.size()) fail_as_damaged("cut short");
    entries_.emplace(place.key, bytes.substr(0, place.size));
    bytes.remove_prefix(place.size);
  }
}

std::optional<Binary> KernelPack::find(const Program& program, const CacheKey& headers) const {
  if (cuda_ > newest_cuda()) return std::nullopt;
  const auto found = entries_.find(key_in_pack(program, headers));
  if (found == entries_.end()) return std::nullopt;
  return entry_of(found->second).binary;
}

std::vector<CacheEntry> KernelPack::entries() const {
  std::vector<CacheEntry> all;
  for (const auto& [key, bytes] : entries_) all.push_back(entry_of(bytes));
  return all;
}

std::string pack_of(std::span<const PackedKernel> kernels, const CacheKey& headers, int cuda) {
  std::string bytes(reinterpret_cast<const char*>(&cuda), sizeof(cuda));
  for (const auto& [program, binary] : kernels) {
    const CacheKey key = key_in_pack(program, headers);
    const std::string entry = bytes_of({key, program.description, program.architecture, binary});
    const Place place{key, entry.size()};
    bytes.append(reinterpret_cast<const char*>(&place), sizeof(place)).append(entry);
  }
  return compressed(bytes);
}

}  // namespace octofold::jit
