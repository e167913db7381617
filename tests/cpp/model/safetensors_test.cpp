// The files that the reader takes and refuses, and those that the writer leaves.
#include "model/safetensors.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "checkpoints.h"

namespace octofold::model {
namespace {

using test::expect_error;
using test::Names;
using test::safetensors_bytes;
using test::write_file;
namespace fs = std::filesystem;
using SafetensorsReaderTest = test::FolderTest;
using SafetensorsWriterTest = test::FolderTest;

std::string tensor_json(std::string_view name, std::string_view dtype, std::string_view shape,
                        std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string object(std::initializer_list<std::string> entries) {
  return fmt::format("{{{}}}", fmt::join(entries, ","));
}

TEST_F(SafetensorsReaderTest, ReadsTensorsInTheOrderOfTheirData) {
  const std::string header = object({tensor_json("late", "U8", "[2,2]", "[8,12]"),
                                     R"("__metadata__":{"format":"pt","é\n":""})",
                                     tensor_json("early", "F32", "[2]", "[0,8]")})
                                 .append("   ");
  write_file(folder_ / "a.safetensors", safetensors_bytes(header, "abcdefghijkl"));
  const SafetensorsReader reader(folder_ / "a.safetensors");

  ASSERT_EQ(reader.tensors().size(), 2u);
  const TensorInfo& early = reader.tensors()[0];
  const TensorInfo& late = reader.tensors()[1];
  EXPECT_EQ(early.name, "early");
  EXPECT_EQ(early.dtype, SafetensorsDType::kF32);
  EXPECT_EQ(early.shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(late.name, "late");
  EXPECT_EQ(late.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(reader.data_bytes(), 12);
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"é\n", ""}}));
  std::string bytes(3, ' ');
  reader.read(late, 1, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "jkl");
}

TEST_F(SafetensorsReaderTest, KnowsEveryDTypeOfTheFormat) {
  const std::pair<std::string_view, int> kBits[] = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  for (const auto& [dtype, bits] : kBits) {
    const std::string header =
        object({tensor_json("t", dtype, "[3,4]", fmt::format("[0,{}]", 12 * bits / 8))});
    const SafetensorsHeader parsed = parse_header("f", header, 12 * bits / 8);
    EXPECT_EQ(name(parsed.tensors[0].dtype), dtype);
    EXPECT_EQ(bits_of(parsed.tensors[0].dtype), bits) << dtype;
  }
}

TEST_F(SafetensorsReaderTest, AcceptsEmptyTensorsAndFiles) {
  EXPECT_TRUE(parse_header("f", "{}", 0).tensors.empty());
  const std::string header = object(
      {tensor_json("full", "U8", "[4]", "[0,4]"),
       tensor_json("empty", "F32", "[0,9223372036854775807]", "[0,0]"),
       tensor_json("scalar", "U8", "[]", "[4,5]"), tensor_json("end", "U8", "[7,0]", "[5,5]")});
  const SafetensorsHeader parsed = parse_header("f", header, 5);
  ASSERT_EQ(parsed.tensors.size(), 4u);
  EXPECT_EQ(parsed.tensors[0].name, "empty");
  EXPECT_EQ(parsed.tensors[3].name, "end");
}

struct BadHeader {
  std::string_view name;
  std::string header;
  std::vector<std::string> message;
};

void PrintTo(const BadHeader& bad, std::ostream* stream) { *stream << bad.name; }

class BadHeaders : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, AreRefusedWithTheReason) {
  const test::TestFolder folder;
  write_file(folder / "bad.safetensors", safetensors_bytes(GetParam().header, "01234567"));
  std::vector<std::string> parts = GetParam().message;
  parts.push_back((folder / "bad.safetensors").string());
  expect_error(ErrorCode::kBadFormat, parts,
               [&] { SafetensorsReader reader(folder / "bad.safetensors"); });
}

/// An entry "t" of eight bytes whose fields are the text.
std::string entry(std::string_view fields) { return fmt::format(R"({{"t":{{{}}}}})", fields); }

/// Headers of a file with 8 bytes of data.
std::vector<BadHeader> bad_headers() {
  const auto two = [](std::string_view first, std::string_view second, std::string_view shape) {
    return object({tensor_json("a", "U8", shape, first), tensor_json("b", "U8", shape, second)});
  };
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return object({tensor_json("t", dtype, shape, offsets)});
  };
  const std::string t = "tensor 't'";
  const std::string good = one("U8", "[8]", "[0,8]");
  return {
      {"Empty", "", {"a header of 2 to", "a length of 0"}},
      {"Array", "[]", {"begins with '{'", "the text '[]'"}},
      {"LeadingSpace", fmt::format(" {}", good), {"begins with '{'", "the text ' {"}},
      {"ByteOrderMark", fmt::format("\xEF\xBB\xBF{}", good), {"begins with '{'"}},
      {"Unclosed", good.substr(0, good.size() - 1), {"not valid JSON at byte"}},
      {"Trailing", good + "x", {"not valid JSON at byte"}},
      {"SecondObject", good + "{}", {"not valid JSON at byte"}},
      {"NulPadding", good + std::string(3, '\0'), {"NUL byte at"}},
      {"Comment", "{/**/}", {"not valid JSON at byte 2"}},
      {"TrailingComma", "{\"t\":{},}", {t, "expected dtype"}},
      {"Latin1", "{\"\xE9\":1}", {"expected UTF-8", "0xE9 at 2"}},
      {"Overlong", "{\"\xC0\xAF\":1}", {"expected UTF-8", "0xC0 at 2"}},
      {"OverlongOf3", "{\"\xE0\x80\xAF\":1}", {"expected UTF-8", "0xE0 at 2"}},
      {"Surrogate", "{\"\xED\xA0\x80\":1}", {"expected UTF-8", "0xED at 2"}},
      {"BeyondUnicode", "{\"\xF4\x90\x80\x80\":1}", {"expected UTF-8", "0xF4 at 2"}},
      {"CutCharacter", "{\"a\xE2\x82", {"expected UTF-8", "0xE2 at 3"}},
      {"LoneSurrogateEscape", R"({"\ud800":1})", {"not valid JSON at byte"}},
      {"DuplicateName",
       object({tensor_json("t", "U8", "[8]", "[0,8]"), tensor_json("t", "U8", "[8]", "[0,8]")}),
       {t, "second"}},
      {"EscapedDuplicateName",
       R"({"__metadata__":{},"\u005f_metadata__":{}})",
       {"'__metadata__'", "second"}},
      {"DuplicateField", entry(R"("dtype":"U8","dtype":"U8")"), {t, "expected one dtype"}},
      {"DuplicateMetadata", R"({"__metadata__":{"k":"1","k":"2"}})", {"'k'", "second"}},
      {"NumberEntry", R"({"t":3})", {t, "an object with dtype, shape and data_offsets", "got 3"}},
      {"NullEntry", R"({"t":null})", {t, "got null"}},
      {"StringEntry", R"({"t":"\n"})", {t, "got the string '\\n'"}},
      {"UnknownField", entry(R"("dtype":"U8","size":8)"), {t, "got 'size'"}},
      {"NoDType", entry(R"("shape":[8],"data_offsets":[0,8])"), {t, "expected dtype", "without"}},
      {"NoShape", entry(R"("dtype":"U8","data_offsets":[0,8])"), {t, "expected shape", "without"}},
      {"NoOffsets", entry(R"("dtype":"U8","shape":[8])"), {t, "expected data_offsets", "without"}},
      {"UnknownDType", one("F7", "[8]", "[0,8]"), {t, "dtype", "'F7'"}},
      {"LowerCaseDType", one("f32", "[2]", "[0,8]"), {t, "dtype", "'f32'"}},
      {"NumberDType", entry(R"("dtype":8)"), {t, "dtype to be a string", "got 8"}},
      {"NumberShape", one("U8", "8", "[0,8]"), {t, "shape to be an array", "got 8"}},
      {"NegativeSize", one("U8", "[-8]", "[0,8]"), {t, "shape to hold integers", "got -8"}},
      {"MinusZero", one("U8", "[-0]", "[0,8]"), {t, "shape to hold integers"}},
      {"FloatSize", one("U8", "[8.0]", "[0,8]"), {t, "shape to hold integers", "got '8.0'"}},
      {"TrueSize", one("U8", "[true]", "[0,8]"), {t, "shape to hold integers", "got true"}},
      {"NestedShape", one("U8", "[[8]]", "[0,8]"), {t, "got an array"}},
      {"ObjectShape", one("U8", "{}", "[0,8]"), {t, "got an object"}},
      {"HugeSize",
       one("U8", "[9223372036854775808]", "[0,8]"),
       {t, "2^63 - 1", "got 9223372036854775808"}},
      {"HugerSize", one("U8", "[99999999999999999999]", "[0,8]"), {t, "shape to hold integers"}},
      {"NoNumber", one("U8", "[1e999]", "[0,8]"), {"header", "not valid JSON at byte"}},
      {"SizeOverflow", one("U8", "[4294967296,4294967296]", "[0,8]"), {t, "below 2^60"}},
      {"BitOverflow", one("F64", "[144115188075855873]", "[0,8]"), {t, "below 2^60", "F64 [1441"}},
      {"HalfByte", one("F4", "[15]", "[0,8]"), {t, "whole bytes", "F4 [15]"}},
      {"OneOffset", one("U8", "[8]", "[8]"), {t, "[begin, end]", "got 1"}},
      {"ThreeOffsets", one("U8", "[8]", "[0,4,8]"), {t, "[begin, end]", "got 3"}},
      {"NegativeOffset", one("U8", "[8]", "[-1,7]"), {t, "data_offsets to hold", "got -1"}},
      {"Backwards", one("U8", "[8]", "[8,0]"), {t, "begin that is not after", "[8, 0]"}},
      {"PastTheEnd", one("U8", "[9]", "[0,9]"), {t, "within the 8 bytes", "[0, 9]"}},
      {"FarPastTheEnd",
       one("U8", "[8]", "[9223372036854775799,9223372036854775807]"),
       {t, "within the 8 bytes"}},
      {"TooSmall", one("F32", "[3]", "[0,8]"), {t, "expected 12 bytes for F32 [3]", "[0, 8]"}},
      {"TooLarge", one("F32", "[1]", "[0,8]"), {t, "expected 4 bytes for F32 [1]"}},
      {"Overlap", two("[0,5]", "[3,8]", "[5]"), {"tensor 'b'", "overlap tensor 'a' [0, 5]"}},
      {"SameData", two("[0,8]", "[0,8]", "[8]"), {"overlap"}},
      {"EmptyInside",
       object({tensor_json("a", "U8", "[8]", "[0,8]"), tensor_json("b", "U8", "[0]", "[4,4]")}),
       {"tensor 'b'", "overlap"}},
      {"Hole", two("[0,3]", "[5,8]", "[3]"), {"tensor 'b'", "from byte 3 on", "hole"}},
      {"HoleFirst", one("U8", "[4]", "[4,8]"), {t, "from byte 0 on", "hole"}},
      {"Uncovered", one("U8", "[4]", "[0,4]"), {"expected 4 bytes", "got 8"}},
      {"NoTensors", "{}", {"expected 0 bytes", "got 8"}},
      {"MetadataNumber", R"({"__metadata__":{"k":1}})", {"'__metadata__'", "strings", "got 1"}},
      {"MetadataObject", R"({"__metadata__":{"k":{}}})", {"'__metadata__'", "got an object"}},
      {"MetadataNull", R"({"__metadata__":null})", {"'__metadata__'", "got null"}},
      {"MetadataArray", R"({"__metadata__":[]})", {"'__metadata__'", "got an array"}},
      {"LongName", fmt::format(R"({{"{}":1}})", std::string(5000, 'n')), {"nnn…'", "got 1"}},
      {"DeepNesting", fmt::format(R"({{"t":{})", std::string(1000000, '[')), {t, "got an array"}},
  };
}

INSTANTIATE_TEST_SUITE_P(SafetensorsReader, BadHeaders, testing::ValuesIn(bad_headers()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(SafetensorsReaderTest, RefusesLyingLengths) {
  const fs::path path = folder_ / "bad.safetensors";
  const auto expect = [&](std::string_view bytes, const std::vector<std::string>& parts) {
    write_file(path, bytes);
    expect_error(ErrorCode::kBadFormat, parts, [&] { SafetensorsReader reader(path); });
  };
  expect("", {path.string(), "a file of 0 bytes"});
  expect("1234567", {"a file of 7 bytes"});
  for (const auto& [begin, what] : std::map<std::string, std::string>{
           {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
           {"\n<!DOCTYPE html><html>", "a page of HTML"},
           {"<?xml version='1.0'?>", "a page of HTML or XML"},
           {"{\"error\":\"Repository not found\"}", "the text '{"},
           {"Access to the model is restricted", "the text 'Access"},
           {"PK\x03\x04-zipped", "torch.save()"},
           {"\x80\x02\x8a\nlF\xf9j", "torch.save()"},
           {"GGUF\x03-----", "GGUF"},
           {"\x1f\x8b-------", "an archive"},
           {std::string(100, '\0'), "zeros"}}) {
    expect(begin, {"expected a header of 2 to 100000000 bytes, got", what});
  }
  expect(std::string(8, '\xFF'), {"to 100000000 bytes", "18446744073709551615"});
  expect(std::string("\x01\xE1\xF5\x05\0\0\0\0", 8), {"to 100000000", "100000001"});
  expect(std::string("\x00\xE1\xF5\x05\0\0\0\0", 8), {"header of 100000000", "ends after 0"});
  const std::string good =
      safetensors_bytes(object({tensor_json("t", "U8", "[8]", "[0,8]")}), "01234567");
  for (std::size_t size = 0; size < good.size(); ++size) {
    write_file(path, good.substr(0, size));
    EXPECT_THROW(SafetensorsReader reader(path), Error) << size;
  }
  expect(good + "8", {"expected 8 bytes", "got 9"});
}

TEST_F(SafetensorsReaderTest, NamesTheSystemsReason) {
  expect_error(ErrorCode::kIo, {"open", (folder_ / "none").string(), "No such file"},
               [&] { SafetensorsReader reader(folder_ / "none"); });
  expect_error(ErrorCode::kIo, {"regular file", "folder"},
               [&] { SafetensorsReader reader(folder_.path()); });
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_error(ErrorCode::kIo, {"regular file", "pipe"},
               [&] { SafetensorsReader reader(folder_ / "pipe"); });
}

TensorInfo info(std::string name, SafetensorsDType dtype, std::vector<std::int64_t> shape) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST_F(SafetensorsWriterTest, WritesWhatTheReaderReads) {
  const auto path = folder_.out();
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

  EXPECT_EQ(folder_.names(), (Names{"out.safetensors"}));
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

TEST_F(SafetensorsWriterTest, SameTensorsGiveTheSameBytes) {
  const auto write = [&](std::string_view file, std::vector<TensorInfo> tensors) {
    SafetensorsWriter writer(folder_ / file, std::move(tensors), {{"b", "1"}, {"a", "2"}});
    writer.write("x", 0, as_bytes("12"));
    writer.write("y", 0, as_bytes("3"));
    writer.finish();
    return test::read_file(folder_ / file);
  };
  const TensorInfo x = info("x", SafetensorsDType::kU8, {2});
  const TensorInfo y = info("y", SafetensorsDType::kI8, {1});
  EXPECT_EQ(write("1", {x, y}), write("2", {y, x}));
}

TEST_F(SafetensorsWriterTest, NothingRemainsWithoutFinish) {
  const std::vector<TensorInfo> tensors = {info("x", SafetensorsDType::kU8, {2})};
  {
    SafetensorsWriter writer(folder_.out(), tensors, {});
    EXPECT_FALSE(std::filesystem::exists(folder_.out()));
    writer.write("x", 0, as_bytes("12"));
  }
  EXPECT_EQ(folder_.names(), Names{});
  {
    SafetensorsWriter writer(folder_.out(), tensors, {});
    writer.write("x", 0, as_bytes("1"));
    expect_error(ErrorCode::kInternal, {"expected 2 bytes", "got 1"}, [&] { writer.finish(); });
    expect_error(ErrorCode::kInternal, {"'x'"}, [&] { writer.write("x", 1, as_bytes("12")); });
    expect_error(ErrorCode::kInternal, {"'y'"}, [&] { writer.write("y", 0, as_bytes("1")); });
  }
  EXPECT_EQ(folder_.names(), Names{});
}

TEST_F(SafetensorsWriterTest, NeverReplacesAFile) {
  {
    SafetensorsWriter writer(folder_.out(), {}, {});
    test::write_file(folder_.out(), "somebody was faster");
    expect_error(ErrorCode::kIo, {(folder_.out()).string(), "File exists"},
                 [&] { writer.finish(); });
  }
  EXPECT_EQ(folder_.names(), (Names{"out.safetensors"}));
  EXPECT_EQ(test::read_file(folder_.out()), "somebody was faster");
}

TEST_F(SafetensorsWriterTest, DiskThatIsFullIsFoundBeforeAnyWork) {
  const test::FileSizeLimit limit(1 << 20);
  expect_error(ErrorCode::kIo, {(folder_ / "out").string(), "File too large"}, [&] {
    SafetensorsWriter writer(folder_ / "out", {info("x", SafetensorsDType::kU8, {2 << 20})}, {});
  });
  EXPECT_EQ(folder_.names(), Names{});
}

TEST_F(SafetensorsWriterTest, RefusesTensorsThatNoFileCanHold) {
  const auto expect = [&](const std::vector<TensorInfo>& tensors, const std::string& part) {
    expect_error(ErrorCode::kInvalidArgument, {part},
                 [&] { SafetensorsWriter writer(folder_ / "out", tensors, {}); });
  };
  const TensorInfo x = info("x", SafetensorsDType::kU8, {2});
  expect({x, x}, "one tensor named 'x'");
  expect({info("odd", SafetensorsDType::kF4, {3})}, "'odd'");
  expect({info("huge", SafetensorsDType::kU8, {INT64_MAX / 8, 3})}, "'huge'");
  expect({info(std::string(100'000'000, 'n'), SafetensorsDType::kU8, {1})}, "100000000 bytes");
  EXPECT_EQ(folder_.names(), Names{});
}

}  // namespace
}  // namespace octofold::model
