#include "model/safetensors_writer.h"

#include "model/safetensors_reader.h"
#include "test_files.h"

namespace octofold::model {
namespace {

using test::expect_error;
using test::Names;

TensorInfo info(std::string name, SafetensorsDType dtype, std::vector<std::int64_t> shape) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const test::TestFolder folder;
  const auto path = folder / "out.safetensors";
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"\"é\"\n", "\x01"}};
  SafetensorsWriter writer(
      path,
      {info("z", SafetensorsDType::kU8, {3}), info("a \"quoted\" ü", SafetensorsDType::kU8, {}),
       info("empty", SafetensorsDType::kF16, {0, 2}), info("f", SafetensorsDType::kF32, {1, 2})},
      metadata);
  writer.write("z", 1, as_bytes("bc"));
  writer.write("f", 0, as_bytes("01234567"));
  writer.write("z", 0, as_bytes("a"));
  writer.write("a \"quoted\" ü", 0, as_bytes("Q"));
  EXPECT_EQ(writer.data_bytes(), 12);
  writer.finish();

  EXPECT_EQ(folder.names(), (Names{"out.safetensors"}));
  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.metadata(), metadata);
  std::vector<std::string> names;
  std::string data;
  for (const TensorInfo& tensor : reader.tensors()) {
    names.push_back(tensor.name);
    std::string bytes(static_cast<std::size_t>(tensor.byte_count()), ' ');
    reader.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    data += bytes;
    EXPECT_EQ(tensor.begin * 8 % bits_of(tensor.dtype), 0) << tensor.name << " is not aligned";
  }
  EXPECT_EQ(names, (Names{"f", "empty", "a \"quoted\" ü", "z"}));
  EXPECT_EQ(data, "01234567Qabc");
  const std::string bytes = test::read_file(path);
  EXPECT_EQ((bytes.size() - 12) % 8, 0u) << "the data is not aligned";
}

TEST(SafetensorsWriter, SameTensorsGiveTheSameBytes) {
  const test::TestFolder folder;
  const auto write = [&](std::string_view file, std::vector<TensorInfo> tensors) {
    SafetensorsWriter writer(folder / file, std::move(tensors), {{"b", "1"}, {"a", "2"}});
    writer.write("x", 0, as_bytes("12"));
    writer.write("y", 0, as_bytes("3"));
    writer.finish();
    return test::read_file(folder / file);
  };
  const TensorInfo x = info("x", SafetensorsDType::kU8, {2});
  const TensorInfo y = info("y", SafetensorsDType::kI8, {1});
  EXPECT_EQ(write("1", {x, y}), write("2", {y, x}));
}

TEST(SafetensorsWriter, NothingRemainsWithoutFinish) {
  const test::TestFolder folder;
  const std::vector<TensorInfo> tensors = {info("x", SafetensorsDType::kU8, {2})};
  {
    SafetensorsWriter writer(folder / "out.safetensors", tensors, {});
    EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
    writer.write("x", 0, as_bytes("12"));
  }
  EXPECT_EQ(folder.names(), Names{});
  {
    SafetensorsWriter writer(folder / "out.safetensors", tensors, {});
    writer.write("x", 0, as_bytes("1"));
    expect_error(ErrorCode::kInternal, {"expected 2 bytes", "got 1"}, [&] { writer.finish(); });
    expect_error(ErrorCode::kInternal, {"'x'"}, [&] { writer.write("x", 1, as_bytes("12")); });
    expect_error(ErrorCode::kInternal, {"'y'"}, [&] { writer.write("y", 0, as_bytes("1")); });
  }
  EXPECT_EQ(folder.names(), Names{});
}

TEST(SafetensorsWriter, NeverReplacesAFile) {
  const test::TestFolder folder;
  {
    SafetensorsWriter writer(folder / "out.safetensors", {}, {});
    test::write_file(folder / "out.safetensors", "somebody was faster");
    expect_error(ErrorCode::kIo, {(folder / "out.safetensors").string(), "File exists"},
                 [&] { writer.finish(); });
  }
  EXPECT_EQ(folder.names(), (Names{"out.safetensors"}));
  EXPECT_EQ(test::read_file(folder / "out.safetensors"), "somebody was faster");
}

TEST(SafetensorsWriter, DiskThatIsFullIsFoundBeforeAnyWork) {
  const test::TestFolder folder;
  const test::FileSizeLimit limit(1 << 20);
  expect_error(ErrorCode::kIo, {(folder / "out").string(), "File too large"}, [&] {
    SafetensorsWriter writer(folder / "out", {info("x", SafetensorsDType::kU8, {2 << 20})}, {});
  });
  EXPECT_EQ(folder.names(), Names{});
}

TEST(SafetensorsWriter, NamesTheFolderThatItCannotWriteTo) {
  const test::TestFolder folder;
  const auto missing = folder.path() / "none" / "out.safetensors";
  expect_error(ErrorCode::kIo, {missing.string(), "No such file or directory"},
               [&] { SafetensorsWriter writer(missing, {}, {}); });
}

TEST(SafetensorsWriter, RefusesTensorsThatNoFileCanHold) {
  const test::TestFolder folder;
  const auto expect = [&](const std::vector<TensorInfo>& tensors, const std::string& part) {
    expect_error(ErrorCode::kInvalidArgument, {part},
                 [&] { SafetensorsWriter writer(folder / "out", tensors, {}); });
  };
  const TensorInfo x = info("x", SafetensorsDType::kU8, {2});
  expect({x, x}, "one tensor named 'x'");
  expect({info("odd", SafetensorsDType::kF4, {3})}, "'odd'");
  expect({info("huge", SafetensorsDType::kU8, {INT64_MAX / 8, 3})}, "'huge'");
  expect({info(std::string(100'000'000, 'n'), SafetensorsDType::kU8, {1})}, "100000000 bytes");
  EXPECT_EQ(folder.names(), Names{});
}

}  // namespace
}  // namespace octofold::model
