// Output that appears whole or not at all: it is written without a name, or under a temporary one
// beside its target, and takes the target's name in one system call when it is complete. And the
// files beside the weights of a folder, which are copied to another.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace octofold::model {

// Files of a checkpoint.
inline constexpr const char* kConfigName = "config.json";
inline constexpr std::string_view kFileEnding = ".safetensors";
inline constexpr std::string_view kIndexEnding = ".safetensors.index.json";

/// True if a file or folder of this name is output that is not complete.
bool is_staged_name(const std::string& name);

class StagedFile {
 public:
  /// Removes what killed processes left beside the target, with a line in the log. Throws
  /// Error(kIo) where the target's folder cannot be written.
  explicit StagedFile(const std::filesystem::path& target);
  /// Unless publish() succeeded nothing remains, on most file systems not even of a process that
  /// was killed: there the file has no name until then.
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const core::File& file() const { return file_; }

  /// Writes through to the disk and renames. Throws Error(kIo) if the target exists by now: nothing
  /// is ever overwritten.
  void publish();

 private:
  StagedFile(const std::filesystem::path& target, std::optional<core::File> unnamed);

  std::filesystem::path target_;
  std::filesystem::path path_;  // empty: the file has no name
  core::File file_;
  bool published_ = false;
};

class StagedFolder {
 public:
  /// target: absolute. Removes what killed processes left beside it, with a line in the log.
  /// Throws Error(kIo) where the folder that holds it cannot be written.
  explicit StagedFolder(const std::filesystem::path& target);
  /// Removes the temporary folder and what is in it unless publish() succeeded.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  /// The path to write to until publish().
  const std::filesystem::path& path() const { return path_; }

  /// Renames. Throws Error(kIo) unless the target is absent or an empty folder.
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  int lock_ = -1;  // held while this process writes
  bool published_ = false;
};

/// Copies all files of a folder and those below it: not its weights, weights in other formats,
/// what the family describes anew (config.json, hf_quant_config.json), folders of caches (.git,
/// .cache), nor `target` itself where it lies in the folder. Weights in other formats are logged.
/// weights: names of the files that were read. Returns paths relative to the folder.
std::vector<std::filesystem::path> copy_along(const std::filesystem::path& folder,
                                              const std::filesystem::path& target,
                                              const std::set<std::string>& weights);

}  // namespace octofold::model
