// Compiled kernels as a library carries them: one after another, compressed as one (a kernel
// differs little from the next: 15 MB take 0.6, in place of 2.6 when each is compressed alone).
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/cache_entry.h"
#include "jit/program.h"

namespace octofold::jit {

class KernelPack {
 public:
  /// `compressed` are the bytes of pack_of(), or none at all. Throws Error(kInternal) where they
  /// are something else.
  explicit KernelPack(std::string_view compressed);
  KernelPack(const KernelPack&) = delete;  // a copy would show the bytes of another
  KernelPack& operator=(const KernelPack&) = delete;

  /// The kernel of this program, compiled from these headers by whatever compiler. Nothing where
  /// the pack has none, or its compiler was of a later CUDA than newest_cuda().
  std::optional<Binary> find(const Program& program, const CacheKey& headers) const;

  /// All of them, each checked.
  std::vector<CacheEntry> entries() const;

  std::size_t size() const { return entries_.size(); }

 private:
  int cuda_ = 0;             // of the compiler
  std::vector<char> bytes_;  // what entries_ shows parts of
  std::map<CacheKey, std::string_view> entries_;
};

struct PackedKernel {
  Program program{};
  Binary binary{};
};

/// The compressed bytes of a pack of these. `headers`: of what all of them were compiled from;
/// `cuda`: the major version of the CUDA whose compiler did so.
std::string pack_of(std::span<const PackedKernel> kernels, const CacheKey& headers, int cuda);

}  // namespace octofold::jit
