#include "model/staged_output.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "core/check.h"

namespace octofold::model {
namespace {

namespace fs = std::filesystem;

/// A name beside `target` that nothing in this process uses. It does not contain the target's name,
/// so that a long one does not make it too long.
fs::path temporary_sibling(const fs::path& target) {
  static std::atomic<std::uint32_t> counter = 0;
  for (;;) {
    const auto path = target.parent_path() /
                      core::format(".octofold-{}-{}.partial", ::getpid(), counter.fetch_add(1));
    // A process of the same id that was killed may have left one behind.
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(path, ignored))) return path;
  }
}

void rename_without_replacing(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  // File systems without that flag (NFS, some FUSE ones) have link(), which does not replace
  // either.
  const bool unsupported = errno == EINVAL || errno == ENOSYS;
  if (!unsupported || ::link(from.c_str(), to.c_str()) != 0) fail_io("create", to, errno);
  ::unlink(from.c_str());
}

/// Makes a rename in this folder survive a power cut. The output is complete by now and visible, so
/// that a file system that cannot do it is no reason to report a failure.
void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

StagedFile::StagedFile(const fs::path& target)
    : target_(target), path_(temporary_sibling(target)), file_(File::create_new(path_, target)) {}

StagedFile::~StagedFile() {
  if (!published_) ::unlink(path_.c_str());
}

void StagedFile::publish() {
  file_.sync();
  rename_without_replacing(path_, target_);
  published_ = true;
  sync_folder(target_.parent_path());
}

StagedFolder::StagedFolder(const fs::path& target)
    : target_(target), path_(temporary_sibling(target)) {
  if (::mkdir(path_.c_str(), 0777) != 0) fail_io("create", target, errno);
}

StagedFolder::~StagedFolder() {
  if (published_) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void StagedFolder::publish() {
  sync_folder(path_);
  if (::rename(path_.c_str(), target_.c_str()) != 0) fail_io("create", target_, errno);
  published_ = true;
  sync_folder(target_.parent_path());
}

}  // namespace octofold::model
