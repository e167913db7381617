// Compiled kernels one after another, as a library carries them: read where they lie.
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
  /// `bytes`, which the pack goes on reading, are those of pack_of(). Throws Error(kInternal) where
  /// they are not.
  explicit KernelPack(std::string_view bytes);

  /// The kernel of this program, compiled from these headers by whatever compiler. Nothing where
  /// the pack has none.
  std::optional<Binary> find(const Program& program, const CacheKey& headers) const;

  /// All of them, each checked.
  std::vector<CacheEntry> entries() const;

  std::size_t size() const { return entries_.size(); }

 private:
  std::map<CacheKey, std::string_view> entries_;
};

struct PackedKernel {
  Program program{};
  Binary binary{};
};

/// The bytes of a pack of these. `headers`: of what all of them were compiled from.
std::string pack_of(std::span<const PackedKernel> kernels, const CacheKey& headers);

}  // namespace octofold::jit
