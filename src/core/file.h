// Files whose every failure is an Error(kIo) with the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octofold::core {

/// Throws Error(kIo): "cannot <action> '<path>': <what errno says>".
[[noreturn]] void fail_io(std::string_view action, const std::filesystem::path& path,
                          int error_number);

/// An open file. Positions are explicit, so that a const File can be read from several threads.
/// Data is read rather than mapped: a file that another process truncates must end in an Error, and
/// not in SIGBUS.
class File {
 public:
  /// Regular files only: opening a pipe would wait for its writer, and a device has no end.
  static File open_for_reading(const std::filesystem::path& path);
  /// Throws where the path exists already. Messages name `shown_as`, the path that the user knows.
  static File create_new(const std::filesystem::path& path, const std::filesystem::path& shown_as,
                         unsigned mode = 0666);

  /// A file in the folder of `shown_as` that has no name, and goes with the process unless it gets
  /// one; nothing where the file system or the system has no such files.
  static std::optional<File> create_unnamed(const std::filesystem::path& shown_as);

  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  int descriptor() const { return descriptor_; }
  /// Bytes when it was opened for reading; 0 for a new file.
  std::int64_t size() const { return size_; }

  /// Fills `bytes` from `offset` on. Throws if the file ends before.
  void read_at(std::int64_t offset, std::span<std::byte> bytes) const;
  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const;
  /// The whole text. Throws Error(kBadFormat) for more than `most` bytes.
  std::string read_text(std::int64_t most = 100'000'000) const;
  /// Asks for the space of `size` bytes now, so that a full disk shows before hours of work do.
  /// File systems that cannot promise space are left to fail in write_at().
  void reserve(std::int64_t size) const;
  /// Returns when the data is on the disk.
  void sync() const;

 private:
  File(const std::filesystem::path& shown_as, int descriptor)
      : shown_as_(shown_as), descriptor_(descriptor) {}

  std::filesystem::path shown_as_;
  int descriptor_;
  std::int64_t size_ = 0;
};

void write_text(const File& file, std::string_view text);

/// Creates the file `path` with this text, on the disk on return.
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// Gives `path` this text by way of the file `temporary` beside it: as a whole, or it is left as it
/// was. What a killed process left there goes; what others put there is not followed.
void replace_text_file(const std::filesystem::path& path, const std::filesystem::path& temporary,
                       std::string_view text);

}  // namespace octofold::core
