#include "cuda/tuning_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "octofold/error.h"

#include "core/check.h"
#include "core/file.h"
#include "core/options.h"
#include "jit/kernel_cache.h"

namespace octofold::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostBytes = 16 << 20;

// Keeps other threads and processes from writing into a folder, which is made if need be: not for
// others to write to, whatever the umask. Where the file system has no locks nobody is kept.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder) {
    std::error_code ignored;
    if (!folder.parent_path().empty()) {
      fs::create_directories(folder.parent_path().parent_path(), ignored);
      mkdir(folder.parent_path().c_str(), 0755);
    }
    mkdir(folder.c_str(), 0755);
    descriptor_ = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) core::fail_io("open", folder, errno);
    flock(descriptor_, LOCK_EX);
  }
  ~FolderLock() { close(descriptor_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

fs::path file_of(std::string_view gpu_name) {
  const core::Options& options = core::options();
  if (!options.uses_tuning) return {};
  if (!options.tuning_file.empty()) return options.tuning_file;
  if (options.cache_folder.empty() || gpu_name.empty()) return {};
  if (!jit::KernelCache(options.cache_folder).fault().empty()) return {};
  return fs::path(options.cache_folder) / "tuning" / plan::tuning_file_name(gpu_name);
}

}  // namespace

TuningFile read_tuning(const plan::Gpu& gpu, std::string_view gpu_name) {
  TuningFile read{.file = file_of(gpu_name)};
  std::error_code error;
  if (read.file.empty() || !fs::exists(read.file, error)) return read;
  try {
    read.tuning =
        plan::Tuning(core::File::open_for_reading(read.file).read_text(kMostBytes), gpu, gpu_name);
  } catch (const Error& fault) {
    read.fault = fault.what();
  }
  return read;
}

fs::path write_choices(const plan::Gpu& gpu, std::string_view gpu_name,
                       std::span<const MeasuredChoice> choices) {
  const fs::path file = file_of(gpu_name);
  if (file.empty()) {
    core::fail(ErrorCode::kUnavailable,
               "tuning.write: expected a folder for tables, got none: name one in "
               "OCTOFOLD_CACHE_DIR, and leave OCTOFOLD_TUNING unset");
  }
  const FolderLock lock(file.parent_path());
  const TuningFile there = read_tuning(gpu, gpu_name);
  const bool is_kept = there.fault.empty() && there.tuning.size() > 0;
  const std::string before =
      is_kept ? core::File::open_for_reading(file).read_text(kMostBytes) : "";
  core::replace_text_file(file, core::format("{}.tmp", file.string()),
                          plan::with_choices(before, gpu, gpu_name, choices));
  return file;
}

}  // namespace octofold::cuda
