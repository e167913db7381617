#include "jit/kernel_cache.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <fcntl.h>
#include <mutex>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#include "core/check.h"
#include "core/format.h"
#include "core/log.h"
#include "core/options.h"
#include "jit/nvrtc.h"

namespace octofold::jit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockFile = "locks";
constexpr std::string_view kUnwritable = "cannot be written";
constexpr std::chrono::minutes kPatience(1);  // with another process that compiles

// One byte of the lock file for each key: a lock of the open file, so that it keeps threads apart
// as well as processes, and ends with its process however that ends. Two keys that share a byte
// only wait for each other. Where the file system has no such locks, or no lock comes in time, as
// of a process that is stopped, nobody is kept apart: then a kernel may be compiled twice, and the
// later one's entry stays.
class KeyLock {
 public:
  KeyLock(const fs::path& folder, const CacheKey& key)
      : descriptor_(open((folder / kLockFile).c_str(),
                         O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644)),
        position_(static_cast<off_t>(key.low >> 2)) {  // positive, also with room behind it
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (descriptor_ >= 0 && set(F_WRLCK) != 0 && (errno == EAGAIN || errno == EACCES) &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~KeyLock() {
    if (descriptor_ < 0) return;
    // To close the file is not enough: a process that was forked meanwhile has it open, too.
    set(F_UNLCK);
    close(descriptor_);
  }
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;

 private:
  int set(short type) const {
    struct flock lock{};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = position_;
    lock.l_len = 1;
    return fcntl(descriptor_, F_OFD_SETLK, &lock);
  }

  int descriptor_;
  off_t position_;
};

// The folder's entries with names of the cache's own (a key and one of the suffixes, or a lock's)
// that are no folders. Throws Error(kIo) where the folder cannot be read.
std::vector<fs::path> files_called(const fs::path& folder,
                                   std::initializer_list<std::string_view> suffixes) {
  std::vector<fs::path> files;
  std::error_code error, gone;
  if (folder.empty() || !fs::exists(folder, error)) return files;
  const std::size_t digits = CacheKey().text().size();
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename();
    const std::size_t key = name == kLockFile ? 0 : digits;
    const bool is_own = name.find_first_not_of("0123456789abcdef") == key &&
                        std::ranges::find(suffixes, name.substr(key)) != suffixes.end();
    if (is_own && !fs::is_directory(it->symlink_status(gone))) files.push_back(it->path());
  }
  if (error) core::fail_io(error.value(), "kernel cache '{}'", folder.string());
  return files;
}

// Says it once a process: whatever keeps entries from being kept will go on doing so.
void warn_of_unusable_folder(const fs::path& folder, std::string_view what,
                             std::string_view reason) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  core::log(LogLevel::kWarning, "kernel cache '{}' {}, so kernels will be compiled again: {}",
            folder.string(), what, reason);
}

}  // namespace

fs::path KernelCache::file_of(const CacheKey& key) const {
  return folder_ / (key.text() + std::string(kEntrySuffix));
}

std::string KernelCache::fault() const {
  struct stat status{};
  const bool is_there = !folder_.empty() && stat(folder_.c_str(), &status) == 0;
  return is_there ? distrust_of(status) : "";
}

bool KernelCache::contains(const CacheKey& key) const {
  std::string fault;
  const std::optional<CacheEntry> entry =
      folder_.empty() || !this->fault().empty() ? std::nullopt : read_entry(file_of(key), fault);
  return entry && entry->key == key;
}

std::optional<Binary> KernelCache::read(const CacheKey& key, const Program& program) const {
  const fs::path file = file_of(key);
  std::string fault;
  std::optional<CacheEntry> entry = read_entry(file, fault);
  if (entry && entry->key != key) {
    entry.reset();
    fault = "it belongs to another kernel";
  }
  if (!entry) {
    if (!fault.empty()) {
      core::log(LogLevel::kWarning,
                "kernel cache entry '{}' is not usable, compiling '{}' again: {}", file.string(),
                program.description, fault);
    }
    return std::nullopt;
  }
  core::log(LogLevel::kDebug, "loaded from '{}': {}", file.string(), program.description);
  return std::move(entry->binary);
}

void KernelCache::keep(const CacheKey& key, const Program& program, const Binary& binary) const {
  try {
    write_entry(file_of(key), {key, program.description, program.architecture, binary});
  } catch (const Error& error) {
    warn_of_unusable_folder(folder_, kUnwritable, error.what());
  }
}

Binary KernelCache::get(const CacheKey& key, const Program& program, const Compile& compile) const {
  if (folder_.empty()) return compile(program);
  if (const std::string reason = fault(); !reason.empty()) {
    warn_of_unusable_folder(folder_, "is not used", reason);
    return compile(program);
  }
  if (std::optional<Binary> binary = read(key, program)) return *std::move(binary);
  std::error_code ignored;
  fs::create_directories(folder_.parent_path(), ignored);
  // Whatever the umask, it is not for others to write to.
  if (mkdir(folder_.c_str(), 0755) != 0 && errno != EEXIST) {
    warn_of_unusable_folder(folder_, kUnwritable, std::generic_category().message(errno));
    return compile(program);
  }
  const KeyLock lock(folder_, key);
  // Another one may have compiled it while this one waited.
  if (std::optional<Binary> binary = read(key, program)) return *std::move(binary);
  Binary binary = compile(program);
  keep(key, program, binary);
  return binary;
}

std::vector<KernelCache::Listed> KernelCache::list() const {
  std::vector<Listed> listed;
  if (!fault().empty()) return {{.file = folder_, .fault = fault()}};
  for (const fs::path& file : files_called(folder_, {kEntrySuffix})) {
    std::error_code gone, no_size;  // another process may be clearing the cache
    Listed item{.file = file, .written = fs::last_write_time(file, gone)};
    if (gone) continue;
    if (fs::is_regular_file(file, no_size)) item.bytes = fs::file_size(file, no_size);
    item.entry = read_entry(item.file, item.fault);
    listed.push_back(std::move(item));
  }
  std::ranges::sort(listed, std::greater(), &Listed::written);
  return listed;
}

int KernelCache::clear() const {
  int entries = 0;
  std::error_code error;
  for (const fs::path& file : files_called(folder_, {kEntrySuffix, kTemporarySuffix, kLockFile})) {
    if (fs::remove(file, error) && file.extension() == kEntrySuffix) ++entries;
    if (error) core::fail_io(error.value(), "kernel cache '{}'", folder_.string());
  }
  return entries;
}

namespace {

KernelCache process_cache() { return KernelCache(core::options().cache_folder); }

CacheKey process_key(const Program& program, std::span<const Header> headers) {
  static const CacheKey headers_digest = digest(headers);
  static const std::string compiler = compiler_identity();
  return key_of(program, headers_digest, compiler);
}

}  // namespace

bool is_cached(const Program& program, std::span<const Header> headers) {
  return process_cache().contains(process_key(program, headers));
}

Binary compile_cached(const Program& program, std::span<const Header> headers) {
  return process_cache().get(process_key(program, headers), program, [&](const Program& wanted) {
    const auto begin = std::chrono::steady_clock::now();
    Binary binary = compile(wanted, headers);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    core::log(LogLevel::kInfo, "compiled in {:.2f} s: {}; {} registers, {} bytes spilled",
              seconds.count(), wanted.description, binary.resources.registers,
              binary.resources.spill_store_bytes);
    return binary;
  });
}

namespace {

class Compilations {
 public:
  Compilations(std::span<const Program> programs, std::span<const Header> headers)
      : programs_(programs), headers_(headers) {}

  template <typename Tell>
  CompileReport run(Tell&& tell) {
    const std::size_t threads =
        std::min(programs_.size(), static_cast<std::size_t>(core::options().num_threads));
    std::vector<std::jthread> workers;  // joined when it ends, however that is
    const Stop stop{*this};
    try {
      for (std::size_t i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      if (workers.empty()) work();  // no threads to be had
    }
    for (std::size_t told = 0; told < programs_.size();) {
      told = wait_for_more_than(told);
      tell(static_cast<std::int64_t>(told));
    }
    return report_;
  }

 private:
  // Declared after the workers, so that they are told to stop before they are joined.
  struct Stop {
    Compilations& all;
    ~Stop() { all.next_ = all.programs_.size(); }
  };

  void work() {
    for (std::size_t i = next_++; i < programs_.size(); i = next_++) {
      bool found = false;
      std::exception_ptr fault;
      try {
        found = is_cached(programs_[i], headers_);
        if (!found) compile_and_keep(programs_[i]);
      } catch (...) {
        fault = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (fault) {
        fault_ = fault;
      } else {
        ++(found ? report_.found : report_.compiled);
      }
      changed_.notify_one();
      if (fault) return;
    }
  }

  void compile_and_keep(const Program& program) const {
    compile_cached(program, headers_);
    if (is_cached(program, headers_)) return;
    core::fail(ErrorCode::kIo, "kernels cannot be kept in '{}'", core::options().cache_folder);
  }

  std::size_t wait_for_more_than(std::size_t told) {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return static_cast<std::size_t>(report_.found + report_.compiled); };
    changed_.wait(lock, [&] { return fault_ || done() > told; });
    if (fault_) std::rethrow_exception(fault_);
    return done();
  }

  std::span<const Program> programs_;
  std::span<const Header> headers_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  CompileReport report_;
  std::exception_ptr fault_;
};

}  // namespace

CompileReport compile_all(std::span<const Program> programs, std::span<const Header> headers,
                          const std::function<void(std::int64_t done)>& tell) {
  return Compilations(programs, headers).run([&](std::int64_t done) {
    if (tell) tell(done);
  });
}

}  // namespace octofold::jit
