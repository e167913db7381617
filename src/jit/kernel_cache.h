// Compiled kernels on disk, shared by all processes of a user.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jit/cache_entry.h"
#include "jit/program.h"

namespace octofold::jit {

/// A folder of entries. Nothing that is wrong with it keeps a kernel from being compiled: it costs
/// time and a logged line. Safe from several threads and processes.
class KernelCache {
 public:
  using Compile = std::function<Binary(const Program&)>;

  /// An empty `folder` keeps nothing.
  explicit KernelCache(const std::filesystem::path& folder)
      : folder_(folder.has_filename() ? folder : folder.parent_path()) {}

  /// The binary under `key`: read, or compiled and kept. Of all processes that ask for the same key
  /// at once one compiles, the others wait for it; if it is killed, the next one takes over.
  Binary get(const CacheKey& key, const Program& program, const Compile& compile) const;

  /// Why nothing is read from the folder or kept in it: others than this user and root may have
  /// written there. Empty where it is used, or there is none yet.
  std::string fault() const;

  /// True if get() would find the binary.
  bool contains(const CacheKey& key) const;

  struct Listed {
    std::filesystem::path file{};
    std::uintmax_t bytes = 0;
    std::filesystem::file_time_type written{};
    /// Nothing where the file cannot be used; then `fault` says why.
    std::optional<CacheEntry> entry{};
    std::string fault{};
  };
  /// All entries, newest first; a folder with a fault alone. Throws Error(kIo) if it cannot be
  /// read.
  std::vector<Listed> list() const;

  /// Removes all that the cache has written and nothing else, by the names; returns how many
  /// entries went. Throws Error(kIo) where a file cannot be removed.
  int clear() const;

 private:
  std::filesystem::path file_of(const CacheKey& key) const;
  std::optional<Binary> read(const CacheKey& key, const Program& program) const;
  void keep(const CacheKey& key, const Program& program, const Binary& binary) const;

  std::filesystem::path folder_;
};

/// The binary of a program, from the cache of options().cache_folder or from NVRTC. `headers` has
/// to be the same list at each call: it is hashed once.
Binary compile_cached(const Program& program, std::span<const Header> headers);

/// True if compile_cached() would find it in the cache.
bool is_cached(const Program& program, std::span<const Header> headers);

struct CompileReport {
  std::int64_t compiled = 0;
  std::int64_t found = 0;  ///< in the cache
};

/// Brings the programs into the cache, as compile_cached() does, by as many threads as one
/// operation may have: kernels do not wait for each other. `tell` is called as kernels are done, by
/// the thread that called. What it throws, or a kernel, ends the run: no other kernel is begun.
/// Throws Error(kIo) where kernels cannot be kept: elsewhere that costs time only, here it is all
/// that matters.
CompileReport compile_all(std::span<const Program> programs, std::span<const Header> headers,
                          const std::function<void(std::int64_t done)>& tell = {});

}  // namespace octofold::jit
