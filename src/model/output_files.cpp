#include "model/output_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/file.h"
#include "core/log.h"
#include "model/json_text.h"

namespace octofold::model {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kMomentBeforeTheLock(30);

/// The process that a name of temporary_sibling()'s has; nothing for any other name.
std::optional<pid_t> process_of(const std::string& name) {
  static const std::regex kOwn(R"(\.octofold-([1-9]\d{0,8})-\d{1,10}\.partial)");
  std::smatch parts;
  if (!std::regex_match(name, parts, kOwn)) return std::nullopt;
  return std::stoi(parts[1]);
}

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

/// True if `path` is one of temporary_sibling()'s, of a process that is no more. One that lives
/// holds a lock, but for the moment before it has it: what is new is left alone where a process has
/// the id that the name says, as it has in each container whose only process is the first.
bool is_abandoned(const fs::path& path) {
  const std::optional<pid_t> process = process_of(path.filename());
  if (!process) return false;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (descriptor < 0) return false;
  struct stat status{};
  const bool is_own = ::fstat(descriptor, &status) == 0 && status.st_uid == ::geteuid() &&
                      (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
  const bool unlocked = is_own && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
  ::close(descriptor);
  const bool is_gone = ::kill(*process, 0) != 0 && errno == ESRCH;
  std::error_code error;
  const auto age = fs::file_time_type::clock::now() - fs::last_write_time(path, error);
  return unlocked && !error && (is_gone || age > kMomentBeforeTheLock);
}

/// Removes what processes that were killed left in this folder.
void remove_abandoned(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, error), end;
       !error && entry != end; entry.increment(error)) {
    if (is_abandoned(entry->path())) found.push_back(entry->path());
  }
  for (const fs::path& path : found) {
    fs::remove_all(path, error);
    core::log(LogLevel::kWarning, "removed '{}', which was left behind by a run that was killed",
              path.string());
  }
}

/// A lock on a file or folder, as long as the descriptor is open.
int lock(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) ::flock(descriptor, LOCK_EX | LOCK_NB);
  return descriptor;
}

/// Gives a file without a name one, that must be free.
void link_unnamed(const core::File& file, const fs::path& target) {
  const std::string path = core::format("/proc/self/fd/{}", file.descriptor());
  if (::linkat(AT_FDCWD, path.c_str(), AT_FDCWD, target.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    core::fail_io("create", target, errno);
  }
}

void rename_without_replacing(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  // File systems without that flag (NFS, some FUSE ones) have link(), which does not replace
  // either.
  const bool unsupported = errno == EINVAL || errno == ENOSYS;
  if (!unsupported || ::link(from.c_str(), to.c_str()) != 0) core::fail_io("create", to, errno);
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

bool is_staged_name(const std::string& name) { return process_of(name).has_value(); }

StagedFile::StagedFile(const fs::path& target)
    : StagedFile(target, core::File::create_unnamed(target)) {}

StagedFile::StagedFile(const fs::path& target, std::optional<core::File> unnamed)
    : target_(target),
      path_(unnamed ? fs::path() : temporary_sibling(target)),
      file_(unnamed ? std::move(*unnamed) : core::File::create_new(path_, target)) {
  ::flock(file_.descriptor(), LOCK_EX | LOCK_NB);
  remove_abandoned(target.parent_path());
}

StagedFile::~StagedFile() {
  if (!published_ && !path_.empty()) ::unlink(path_.c_str());
}

void StagedFile::publish() {
  file_.sync();
  if (path_.empty()) {
    link_unnamed(file_, target_);
  } else {
    rename_without_replacing(path_, target_);
  }
  published_ = true;
  sync_folder(target_.parent_path());
}

StagedFolder::StagedFolder(const fs::path& target)
    : target_(target), path_(temporary_sibling(target)) {
  remove_abandoned(target.parent_path());
  if (::mkdir(path_.c_str(), 0777) != 0) core::fail_io("create", target, errno);
  lock_ = lock(path_);
}

StagedFolder::~StagedFolder() {
  if (lock_ >= 0) ::close(lock_);
  if (published_) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void StagedFolder::publish() {
  sync_folder(path_);
  if (::rename(path_.c_str(), target_.c_str()) != 0) core::fail_io("create", target_, errno);
  published_ = true;
  sync_folder(target_.parent_path());
}

namespace {

bool ends_with_any(const std::string& name, std::span<const std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

/// The same weights once more, as other frameworks have them.
bool is_in_other_format(const std::string& name) {
  constexpr std::array<std::string_view, 9> kEndings = {
      ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt"};
  return ends_with_any(name, kEndings);
}

bool is_cache(const std::string& folder) {
  constexpr std::array<std::string_view, 5> kNames = {".git", ".cache", ".huggingface", ".locks",
                                                      "__pycache__"};
  return std::find(kNames.begin(), kNames.end(), folder) != kNames.end();
}

/// Folders of sentence-transformers' modules, whose weights nobody has but they.
std::set<std::string> modules_in(const fs::path& folder) {
  constexpr std::string_view kModules = "modules.json";
  std::set<std::string> paths;
  std::error_code ignored;
  if (!fs::exists(folder / kModules, ignored)) return paths;
  const std::string text = core::File::open_for_reading(folder / kModules).read_text();
  const nlohmann::json modules = nlohmann::json::parse(text, nullptr, false);
  if (!modules.is_array()) return paths;
  for (const nlohmann::json& module : modules) {
    if (!module.is_object()) continue;
    const auto path = module.find("path");
    if (path != module.end() && path->is_string()) paths.insert(path->get<std::string>());
  }
  paths.erase("");
  return paths;
}

class Walk {
 public:
  Walk(const fs::path& folder, const fs::path& target, const std::set<std::string>& weights)
      : folder_(folder), target_(target), weights_(weights), modules_(modules_in(folder)) {}

  std::vector<fs::path> run() {
    visit("");
    if (!left_.empty()) {
      core::log(LogLevel::kWarning, "{} other files of weights are left behind: {}", left_.size(),
                quoted(left_));
    }
    return std::move(copied_);
  }

 private:
  void visit(const fs::path& below) {
    std::vector<fs::directory_entry> entries;
    std::error_code error;
    for (fs::directory_iterator entry(folder_ / below, error), end; !error && entry != end;
         entry.increment(error)) {
      entries.push_back(*entry);
    }
    if (error) core::fail_io("open", folder_ / below, error.value());
    std::sort(entries.begin(), entries.end());
    for (const fs::directory_entry& entry : entries) {
      const fs::path path = below / entry.path().filename();
      if (entry.is_directory(error)) {
        if (!entry.is_symlink(error) && comes_along(entry)) visit(path);
      } else if (entry.is_regular_file(error)) {
        take(entry, path);
      }
    }
  }

  bool comes_along(const fs::directory_entry& folder) const {
    const std::string name = folder.path().filename();
    std::error_code ignored;
    return !is_cache(name) && !is_staged_name(name) &&
           !fs::equivalent(folder.path(), target_, ignored);
  }

  void take(const fs::directory_entry& entry, const fs::path& path) {
    const std::string name = path.filename();
    if (is_staged_name(name)) return;
    const bool top = !path.has_parent_path();
    if (top) {
      if (name == kConfigName || name == "hf_quant_config.json" || weights_.contains(name)) return;
      if (name.ends_with(kIndexEnding)) return;
    }
    const bool is_own = !top && modules_.contains(path.begin()->string());
    std::error_code error;
    // An adapter is for the model, in FP8 or not, and its config asks for it.
    const bool is_adapter = (name == "adapter_model.safetensors" || name == "adapter_model.bin") &&
                            fs::exists(entry.path().parent_path() / "adapter_config.json", error);
    // Records of layers by octofold.models.save() are not true of other weights.
    if ((top && !is_adapter && (name.ends_with(kFileEnding) || name == "octofold.json")) ||
        (!is_own && !is_adapter && is_in_other_format(name))) {
      left_.push_back(path.string());
      return;
    }
    fs::create_directories((target_ / path).parent_path(), error);
    if (!error) fs::copy_file(entry.path(), target_ / path, error);
    if (error) core::fail_io("copy", entry.path(), error.value());
    copied_.push_back(path);
  }

  fs::path folder_;
  fs::path target_;
  const std::set<std::string>& weights_;
  std::set<std::string> modules_;
  std::vector<fs::path> copied_;
  std::vector<std::string> left_;
};

}  // namespace

std::vector<fs::path> copy_along(const fs::path& folder, const fs::path& target,
                                 const std::set<std::string>& weights) {
  return Walk(folder, target, weights).run();
}

}  // namespace octofold::model
