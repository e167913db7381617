// The things that a process has once: the handler of its log, options from its environment, shared
// objects and the IDs of their builds.
#include <cstdlib>
#include <elf.h>
#include <fstream>

#include "core/log.h"
#include "core/options.h"
#include "core/shared_object.h"
#include "support/test.h"
#include "support/test_folder.h"

namespace octofold::core {
namespace {

class LogTest : public testing::Test {
 protected:
  void TearDown() override { set_log_handler({}); }
};

TEST_F(LogTest, NobodyListensByDefault) {
  EXPECT_FALSE(log_enabled(LogLevel::kWarning));
  log(LogLevel::kWarning, "dropped {}", 1);
}

TEST_F(LogTest, HandlerGetsFormattedMessagesFromTheLevelOn) {
  std::vector<std::string> messages;
  set_log_handler([&](LogLevel, std::string_view message) { messages.emplace_back(message); });
  log(LogLevel::kDebug, "below the default level");
  log(LogLevel::kWarning, "{} of {}", 1, 2);
  EXPECT_EQ(messages, std::vector<std::string>{"1 of 2"});
}

TEST_F(LogTest, HandlerMayLogAndMayBeReplacedMeanwhile) {
  std::atomic<int> calls{0};
  const auto install = [&] {
    set_log_handler([&](LogLevel level, std::string_view) {
      if (++calls % 2 == 1) log(level, "from within");
    });
  };
  install();
  std::jthread replacing([&](std::stop_token stop) {
    while (!stop.stop_requested()) install();
  });
  for (int i = 0; i < 1000; ++i) log(LogLevel::kInfo, "message {}", i);
  EXPECT_GE(calls, 1000);
}

// parse_options takes a plain function, so the variables of a test live in statics.
const char* variable_name = nullptr;
const char* variable_value = nullptr;
const char* fake_getenv(const char* name) {
  return variable_name != nullptr && std::strcmp(name, variable_name) == 0 ? variable_value
                                                                           : nullptr;
}

Options parse(const char* name, const char* value) {
  variable_name = name;
  variable_value = value;
  return parse_options(fake_getenv);
}

TEST(OptionsTest, Defaults) {
  const Options options = parse(nullptr, nullptr);
  EXPECT_GE(options.num_threads, 1);
  EXPECT_EQ(options.log_level, LogLevel::kInfo);
  EXPECT_EQ(options.nvrtc_library, "");
  EXPECT_FALSE(options.check_groups);
  EXPECT_FALSE(options.batch_invariant);
  EXPECT_EQ(options.target, 0);
  EXPECT_TRUE(options.uses_tuning);
  EXPECT_EQ(options.tuning_file, "");
  EXPECT_TRUE(options.uses_precompiled_kernels);
}

TEST(OptionsTest, Values) {
  EXPECT_EQ(parse("OCTOFOLD_NUM_THREADS", "12").num_threads, 12);
  EXPECT_EQ(parse("OCTOFOLD_LOG_LEVEL", "debug").log_level, LogLevel::kDebug);
  EXPECT_EQ(parse("OCTOFOLD_NVRTC", "/x/libnvrtc.so").nvrtc_library, "/x/libnvrtc.so");
  EXPECT_EQ(parse("OCTOFOLD_TUNING", "/x/table.json").tuning_file, "/x/table.json");
  EXPECT_TRUE(parse("OCTOFOLD_TUNING", "/x/table.json").uses_tuning);
  EXPECT_FALSE(parse("OCTOFOLD_TUNING", "0").uses_tuning);
  EXPECT_TRUE(parse("OCTOFOLD_TUNING", "auto").tries_kernels);
  EXPECT_EQ(parse("OCTOFOLD_TUNING", "auto").tuning_file, "");
  EXPECT_TRUE(parse("OCTOFOLD_CHECK_GROUPS", "1").check_groups);
  EXPECT_FALSE(parse("OCTOFOLD_CHECK_GROUPS", "0").check_groups);
  EXPECT_TRUE(parse("OCTOFOLD_BATCH_INVARIANT", "1").batch_invariant);
  EXPECT_FALSE(parse("OCTOFOLD_PRECOMPILED_KERNELS", "0").uses_precompiled_kernels);
  EXPECT_TRUE(parse("OCTOFOLD_PRECOMPILED_KERNELS", "1").uses_precompiled_kernels);
  EXPECT_EQ(parse("OCTOFOLD_TARGET", "sm_75").target, 75);
  EXPECT_EQ(parse("OCTOFOLD_TARGET", "sm_120").target, 120);
}

TEST(OptionsTest, AnEmptyVariableIsAsGoodAsNone) {
  EXPECT_EQ(parse("OCTOFOLD_NUM_THREADS", "").num_threads, parse(nullptr, nullptr).num_threads);
  EXPECT_EQ(parse("OCTOFOLD_LOG_LEVEL", "").log_level, LogLevel::kInfo);
  EXPECT_EQ(parse("OCTOFOLD_NVRTC", "").nvrtc_library, "");
}

TEST(OptionsTest, CacheFolder) {
  EXPECT_EQ(parse("OCTOFOLD_CACHE_DIR", "/x/kernels").cache_folder, "/x/kernels");
  EXPECT_EQ(parse("XDG_CACHE_HOME", "/x").cache_folder, "/x/octofold");
  EXPECT_EQ(parse("XDG_CACHE_HOME", "relative").cache_folder, "");
  EXPECT_EQ(parse("HOME", "/home/me").cache_folder, "/home/me/.cache/octofold");
  EXPECT_EQ(parse(nullptr, nullptr).cache_folder, "");
}

TEST(OptionsTest, BadValuesNameTheVariable) {
  for (const char* value : {"0", "-3", "1025", "two", "4x", "99999999999999999999"}) {
    EXPECT_THAT(test::error_of([&] { parse("OCTOFOLD_NUM_THREADS", value); }),
                HasSubstr("OCTOFOLD_NUM_THREADS"));
  }
  EXPECT_THROW(parse("OCTOFOLD_LOG_LEVEL", "loud"), Error);
  EXPECT_THROW(parse("OCTOFOLD_CHECK_GROUPS", "yes"), Error);
  EXPECT_THROW(parse("OCTOFOLD_PRECOMPILED_KERNELS", "2"), Error);
}

// Temporary files go to a folder that is the test's alone.
class SharedObjectTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const before = std::getenv("TMPDIR")) before_ = before;
    setenv("TMPDIR", folder_.path().c_str(), 1);
  }
  void TearDown() override { before_ ? setenv("TMPDIR", before_->c_str(), 1) : unsetenv("TMPDIR"); }

  const test::TestFolder folder_;
  std::optional<std::string> before_;
};

using Cosine = double(double);

TEST_F(SharedObjectTest, AnOwnInstanceHasFunctionsOfItsOwn) {
  const SharedObject shared("libm.so.6"), again("libm.so.6");
  const SharedObject own = SharedObject::own_instance("libm.so.6");
  ASSERT_TRUE(own.is_open()) << own.error();
  Cosine* const cosine = own.find<Cosine>("cos");
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0), 1);
  EXPECT_EQ(again.find<Cosine>("cos"), shared.find<Cosine>("cos"));
  EXPECT_NE(cosine, shared.find<Cosine>("cos"));
}

TEST_F(SharedObjectTest, AnOwnInstanceLeavesNoFile) {
  ASSERT_TRUE(SharedObject::own_instance("libm.so.6").is_open());
  EXPECT_THAT(folder_.names(), testing::IsEmpty());
}

// tests/tsan.supp knows NVRTC by it.
TEST_F(SharedObjectTest, AnOwnInstanceHasTheNameOfItsFile) {
  ASSERT_TRUE(SharedObject::own_instance("libm.so.6").is_open());
  std::ifstream maps("/proc/self/maps");
  const std::string mapped(std::istreambuf_iterator<char>(maps), {});
  EXPECT_THAT(mapped, HasSubstr((folder_ / "libm.so.6-octofold-").string()));
}

TEST_F(SharedObjectTest, WithoutAFolderForTheCopyThereIsNone) {
  setenv("TMPDIR", (folder_ / "none").c_str(), 1);
  const SharedObject own = SharedObject::own_instance("libm.so.6");
  EXPECT_FALSE(own.is_open());
  EXPECT_THAT(own.error(), HasSubstr("temporary files"));
}

TEST_F(SharedObjectTest, AFileThatIsMissingIsNamed) {
  const SharedObject own = SharedObject::own_instance("libnothing.so");
  EXPECT_FALSE(own.is_open());
  EXPECT_THAT(own.error(), HasSubstr("libnothing.so"));
}

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string note(Elf64_Word type, const std::string& content) {
  return bytes_of(Elf64_Nhdr{4, static_cast<Elf64_Word>(content.size()), type}) +
         std::string("GNU\0", 4) + content;
}

// A shared object that is nothing but its notes, a segment for each.
std::string elf_with(const std::vector<std::string>& notes) {
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_phoff = sizeof(head);
  head.e_phnum = static_cast<Elf64_Half>(notes.size());
  std::string segments, contents;
  for (const std::string& content : notes) {
    Elf64_Phdr segment{};
    segment.p_type = PT_NOTE;
    segment.p_offset = sizeof(head) + notes.size() * sizeof(segment) + contents.size();
    segments += bytes_of(segment);
    contents += content;
  }
  return bytes_of(head) + segments + contents;
}

std::string id_in(const std::string& bytes) {
  const test::TestFolder folder;
  std::ofstream(folder / "file", std::ios::binary) << bytes;
  return build_id((folder / "file").string());
}

const std::string kId("\x00\x1f\xff", 3);

TEST(BuildIdTest, IsFoundBehindOtherNotes) {
  EXPECT_EQ(id_in(elf_with({note(NT_GNU_BUILD_ID, kId)})), "001fff");
  EXPECT_EQ(id_in(elf_with({note(NT_GNU_PROPERTY_TYPE_0, "property"), note(NT_GNU_BUILD_ID, kId)})),
            "001fff");
}

TEST(BuildIdTest, IsEmptyWhereThereIsNone) {
  EXPECT_EQ(id_in(elf_with({})), "");
  EXPECT_EQ(id_in(elf_with({note(NT_GNU_PROPERTY_TYPE_0, "property")})), "");
  EXPECT_EQ(id_in("not an object file, but longer than the head of one would be"), "");
  EXPECT_EQ(build_id("/no/such/file"), "");
}

TEST(BuildIdTest, NoFileCutShortHasOne) {
  const std::string whole = elf_with({note(NT_GNU_BUILD_ID, kId)});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(id_in(whole.substr(0, size)), "") << size;
  }
}

}  // namespace
}  // namespace octofold::core
