#include "core/file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "core/check.h"

namespace octofold::core {

void fail_io(std::string_view action, const std::filesystem::path& path, int error_number) {
  fail_io(error_number, "cannot {} '{}'", action, path.string());
}

File File::open_for_reading(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. It changes nothing for regular files.
  File file(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor_ < 0) fail_io("open", path, errno);
  struct stat status{};
  if (::fstat(file.descriptor_, &status) != 0) fail_io("stat", path, errno);
  if (!S_ISREG(status.st_mode)) {
    const bool is_folder = S_ISDIR(status.st_mode);
    throw Error(ErrorCode::kIo,
                core::format("cannot read '{}': expected a regular file, got a {}", path.string(),
                             is_folder ? "folder" : "device, pipe or socket"),
                is_folder ? EISDIR : 0);
  }
  file.size_ = status.st_size;
  return file;
}

File File::create_new(const std::filesystem::path& path, const std::filesystem::path& shown_as,
                      unsigned mode) {
  File file(shown_as, ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (file.descriptor_ < 0) fail_io("create", shown_as, errno);
  return file;
}

std::optional<File> File::create_unnamed(const std::filesystem::path& shown_as) {
  if (::access("/proc/self/fd", X_OK) != 0) return std::nullopt;  // where it gets its name from
  const std::filesystem::path parent = shown_as.parent_path();
  const char* folder = parent.empty() ? "." : parent.c_str();
  const int descriptor = ::open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (descriptor < 0) return std::nullopt;
  return File(shown_as, descriptor);
}

File::File(File&& other) noexcept
    : shown_as_(std::move(other.shown_as_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::read_at(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_io("read", shown_as_, errno);
    }
    if (count == 0) {
      fail(ErrorCode::kIo,
           "cannot read '{}': expected {} bytes, as when it was opened, but it ends at {}",
           shown_as_.string(), size_, offset);
    }
    offset += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::string File::read_text(std::int64_t most) const {
  if (size_ > most) {
    fail(ErrorCode::kBadFormat, "{}: expected at most {} bytes, got {}", shown_as_.string(), most,
         size_);
  }
  std::string text(static_cast<std::size_t>(size_), '\0');
  read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void File::write_at(std::int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_io("write", shown_as_, errno);
    }
    offset += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void File::reserve(std::int64_t size) const {
  // Not posix_fallocate(): where the file system has no such call, that writes to every block.
  int result;
  do {
    result = ::fallocate(descriptor_, 0, 0, size);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    fail_io(core::format("reserve {} bytes for", size), shown_as_, errno);
  }
}

void File::sync() const {
  if (::fsync(descriptor_) != 0) fail_io("write", shown_as_, errno);
}

void write_text(const File& file, std::string_view text) {
  file.write_at(0, std::as_bytes(std::span(text)));
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  const File file = File::create_new(path, path);
  write_text(file, text);
  file.sync();
}

void replace_text_file(const std::filesystem::path& path, const std::filesystem::path& temporary,
                       std::string_view text) {
  ::unlink(temporary.c_str());
  try {
    write_text(File::create_new(temporary, temporary, 0644), text);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_io("rename", temporary, errno);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace octofold::core
