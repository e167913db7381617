// Output that appears whole or not at all: it is written under a temporary name beside its target,
// and takes the target's name in one system call when it is complete.
#pragma once

#include <filesystem>

#include "model/file.h"

namespace octofold::model {

class StagedFile {
 public:
  /// Throws Error(kIo) where the target's folder cannot be written.
  explicit StagedFile(const std::filesystem::path& target);
  /// Removes the temporary file unless publish() succeeded.
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const File& file() const { return file_; }

  /// Writes through to the disk and renames. Throws Error(kIo) if the target exists by now: nothing
  /// is ever overwritten.
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  File file_;
  bool published_ = false;
};

class StagedFolder {
 public:
  /// target: absolute. Throws Error(kIo) where the folder that holds it cannot be written.
  explicit StagedFolder(const std::filesystem::path& target);
  /// Removes the temporary folder and what is in it unless publish() succeeded.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  /// Where to write until publish().
  const std::filesystem::path& path() const { return path_; }

  /// Renames. Throws Error(kIo) unless the target is absent or an empty folder.
  void publish();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  bool published_ = false;
};

}  // namespace octofold::model
