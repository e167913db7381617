// Files for tests of checkpoints: a folder of their own, safetensors bytes made by hand or written
// with the writer and read back whole, errors.
#pragma once

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

#include "model/safetensors.h"
#include "support/log.h"
#include "support/test.h"
#include "support/test_folder.h"

namespace octofold::test {

class FolderTest : public testing::Test {
 protected:
  const TestFolder folder_;
};

inline void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), std::ssize(bytes));
  if (!stream.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Length, header and data, as they are in a file; the header is not checked.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes.append(header).append(data);
}

inline std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(as_size(count));
  for (float& value : values) value = normal(generator);
  return values;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

using Names = std::vector<std::string>;

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

/// Expects action() to throw an Error of this code whose message has all the parts, in one line.
template <typename Action>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, Action action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    for (const std::string& part : parts) expect_contains(message, part);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return;
  }
  ADD_FAILURE() << "no error; expected one with " << testing::PrintToString(parts);
}

/// While it lives, no file can grow beyond `bytes`: as a full disk, but without root or a mount.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit lower{bytes, limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit limit_{};
  void (*handler_)(int);
};

struct NamedTensor {
  std::string name;
  model::SafetensorsDType dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

inline NamedTensor float_tensor(std::string name, std::vector<std::int64_t> shape, unsigned seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return {std::move(name), model::SafetensorsDType::kF32, std::move(shape),
          bytes_of(random_floats(count, seed))};
}

inline void write_checkpoint(const fs::path& path, const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata = {}) {
  std::vector<model::TensorInfo> infos;
  for (const NamedTensor& tensor : tensors) {
    infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  model::SafetensorsWriter writer(path, infos, metadata);
  for (const NamedTensor& tensor : tensors) {
    writer.write(tensor.name, 0, std::as_bytes(std::span(tensor.bytes)));
  }
  writer.finish();
}

inline std::map<std::string, NamedTensor> read_checkpoint(const fs::path& path) {
  const model::SafetensorsReader reader(path);
  std::map<std::string, NamedTensor> tensors;
  for (const model::TensorInfo& info : reader.tensors()) {
    std::string bytes(as_size(info.byte_count()), '\0');
    reader.read(info, 0, std::as_writable_bytes(std::span(bytes)));
    tensors[info.name] = {info.name, info.dtype, info.shape, std::move(bytes)};
  }
  return tensors;
}

inline void expect_copied(const std::map<std::string, NamedTensor>& tensors,
                          const NamedTensor& tensor) {
  SCOPED_TRACE(tensor.name);
  ASSERT_TRUE(tensors.contains(tensor.name));
  const NamedTensor& copy = tensors.at(tensor.name);
  EXPECT_EQ(copy.dtype, tensor.dtype);
  EXPECT_EQ(copy.shape, tensor.shape);
  EXPECT_TRUE(copy.bytes == tensor.bytes);
}

}  // namespace octofold::test
