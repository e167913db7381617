#include "cuda/tuning_file.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

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
// others to write to, whatever the umask. Where the file system has no locks, or none comes in
// time, as of a process that is stopped, nobody is kept: then the later choices stay.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder) {
    std::error_code ignored;
    fs::create_directories(folder.parent_path().parent_path(), ignored);
    for (const fs::path& each : {folder.parent_path(), folder}) {
      if (!each.empty() && mkdir(each.c_str(), 0755) != 0 && errno != EEXIST && errno != EISDIR) {
        core::fail_io("create", each, errno);
      }
    }
    descriptor_ = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) core::fail_io("open", folder, errno);
    constexpr std::chrono::seconds kPatience(2);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~FolderLock() {
    // To close it is not enough: a process that was forked meanwhile has it open, too.
    flock(descriptor_, LOCK_UN);
    close(descriptor_);
  }
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

// A file's text, and the table that it is, if it is followed.
struct Read {
  std::string text{};
  plan::Tuning tuning{};
};

// Nothing where there is no file. Throws Error: kIo, and others where it is not followed.
std::optional<Read> read(const fs::path& file, const plan::Gpu& gpu, std::string_view gpu_name) {
  std::error_code error;
  if (file.empty() || !fs::exists(file, error)) return {};
  Read read{.text = core::File::open_for_reading(file).read_text(kMostBytes)};
  read.tuning = plan::Tuning(read.text, gpu, gpu_name);
  return read;
}

fs::path place_of(std::string_view gpu_name) {
  fs::path file = file_of(gpu_name);
  if (!file.empty()) return file;
  core::fail(ErrorCode::kUnavailable,
             "tuning.write: expected a folder for tables, got none: name one in "
             "OCTOFOLD_CACHE_DIR, and leave OCTOFOLD_TUNING unset, or set it to auto");
}

void replace(const fs::path& file, std::string_view text) {
  static std::atomic<int> number = 0;
  core::replace_text_file(
      file, core::format("{}.{}-{}.tmp", file.string(), getpid(), number.fetch_add(1)), text);
}

}  // namespace

TuningFile read_tuning(const plan::Gpu& gpu, std::string_view gpu_name) {
  TuningFile found{.file = file_of(gpu_name)};
  try {
    if (auto there = read(found.file, gpu, gpu_name)) found.tuning = std::move(there->tuning);
  } catch (const Error& fault) {
    found.fault = fault.what();
  }
  return found;
}

fs::path write_choices(const plan::Gpu& gpu, std::string_view gpu_name,
                       std::span<const MeasuredChoice> choices) {
  const fs::path file = place_of(gpu_name);
  const FolderLock lock(file.parent_path());
  std::optional<Read> there;
  try {
    there = read(file, gpu, gpu_name);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
  }
  replace(file, plan::with_choices(there ? there->text : "", gpu, gpu_name, choices));
  return file;
}

void keep_choice(const plan::Gpu& gpu, std::string_view gpu_name, const MeasuredChoice& choice) {
  const fs::path file = place_of(gpu_name);
  const FolderLock lock(file.parent_path());
  const std::optional<Read> there = read(file, gpu, gpu_name);
  if (there && !there->tuning.candidate(choice.problem).empty()) return;
  replace(file, plan::with_choices(there ? there->text : "", gpu, gpu_name, {&choice, 1}));
}

}  // namespace octofold::cuda
