// The disk cache against processes, crashes, damage and unwilling file systems. The compiler is a
// stand-in that counts: what matters here is when it is called.
#include "jit/kernel_cache.h"

#include <fstream>
#include <future>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/log.h"
#include "support/test.h"
#include "support/test_folder.h"

namespace octofold::jit {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::IsEmpty;

const Program kProgram{.header = "kernels/a.h",
                       .kernel = "a<1>",
                       .architecture = "sm_90a",
                       .description = "the kernel a"};
const CacheKey kKey{0x0123456789abcdef, 0xfedcba9876543210};

Binary binary_of(char fill) {
  return {.symbol = "_Z1aILi1EEvv",
          .image = std::vector<char>(5000, fill),
          .resources = {168, 0, 0, 0}};
}

class KernelCacheTest : public testing::Test {
 protected:
  KernelCache cache() const { return KernelCache(root_ / "cache"); }
  fs::path entry() const { return root_ / "cache" / (kKey.text() + ".kernel"); }
  fs::path counter() const { return root_ / "compiled"; }

  // Appends a byte to a file: counts over processes.
  Binary compile() const {
    std::ofstream(counter(), std::ios::app) << '.';
    return binary_of('x');
  }
  int compiled() const {
    std::error_code none;
    const auto size = fs::file_size(counter(), none);
    return none ? 0 : static_cast<int>(size);
  }
  Binary get() const {
    return cache().get(kKey, kProgram, [this](const Program&) { return compile(); });
  }

  std::string read_entry_bytes() const {
    std::ostringstream text;
    text << std::ifstream(entry(), std::ios::binary).rdbuf();
    return text.str();
  }
  void write_entry_bytes(const std::string& bytes) const {
    std::ofstream(entry(), std::ios::binary | std::ios::trunc) << bytes;
  }
  // The damaged entry costs one compilation and a warning, and is whole afterwards.
  void expect_recompiled(const std::string& why) {
    log_.messages.clear();
    const int before = compiled();
    EXPECT_EQ(get(), binary_of('x')) << why;
    EXPECT_EQ(compiled(), before + 1) << why;
    EXPECT_THAT(log_.messages, Contains(HasSubstr("the kernel a"))) << why;
    EXPECT_EQ(get(), binary_of('x')) << why;
    EXPECT_EQ(compiled(), before + 1) << why << ": the new entry was not used";
  }

  const test::TestFolder root_;
  test::Log log_;
};

TEST_F(KernelCacheTest, CompilesOnceAndReadsAfterwards) {
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_EQ(compiled(), 1);
  EXPECT_THAT(log_.messages, IsEmpty());
}

TEST_F(KernelCacheTest, KeysKeepApart) {
  get();
  const CacheKey other{kKey.high, kKey.low + 1};
  cache().get(other, kProgram, [this](const Program&) { return compile(); });
  EXPECT_EQ(compiled(), 2);
}

TEST_F(KernelCacheTest, OfSixteenProcessesOneCompiles) {
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const Binary binary = cache().get(kKey, kProgram, [this](const Program&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return compile();
      });
      _exit(binary == binary_of('x') ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(compiled(), 1);
}

TEST_F(KernelCacheTest, OfSixteenThreadsOneCompiles) {
  std::atomic<int> count = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      cache().get(kKey, kProgram, [&](const Program&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ++count;
        return binary_of('x');
      });
    });
  }
  threads.clear();
  EXPECT_EQ(count, 1);
}

TEST_F(KernelCacheTest, AKilledCompilerLetsTheNextOneGoOn) {
  int started[2];
  ASSERT_EQ(pipe(started), 0);
  const pid_t child = fork();
  if (child == 0) {
    cache().get(kKey, kProgram, [&](const Program&) -> Binary {
      // In mid-compile, with half an entry written.
      std::ofstream(entry().string() + ".tmp") << "half";
      if (write(started[1], "x", 1) != 1) _exit(1);
      pause();
      _exit(1);
    });
  }
  char byte = 0;
  ASSERT_EQ(read(started[0], &byte, 1), 1);
  Binary mine;
  std::jthread waiting([&] { mine = get(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(compiled(), 0) << "it did not wait";
  kill(child, SIGKILL);
  waiting.join();
  waitpid(child, nullptr, 0);
  EXPECT_EQ(mine, binary_of('x'));
  EXPECT_EQ(compiled(), 1);
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_EQ(compiled(), 1);
}

// A lock belongs to the open file, which a fork in the middle of a compilation passes on.
TEST_F(KernelCacheTest, AChildForkedInMidCompileKeepsNobodyWaiting) {
  pid_t child = -1;
  std::future<Binary> waiting;
  cache().get(kKey, kProgram, [&](const Program&) {
    child = fork();
    if (child == 0) {
      pause();
      _exit(1);
    }
    waiting = std::async(std::launch::async, [&] { return get(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return compile();
  });
  EXPECT_EQ(waiting.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(waiting.get(), binary_of('x'));
  EXPECT_EQ(compiled(), 1);
}

TEST_F(KernelCacheTest, DamagedForeignAndFutureEntries) {
  get();
  const std::string whole = read_entry_bytes();
  const auto expect_refused = [&](const std::string& bytes, const std::string& why) {
    write_entry_bytes(bytes);
    expect_recompiled(why);
  };
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{87}, std::size_t{88},
                                 whole.size() / 2, whole.size() - 1}) {
    expect_refused(whole.substr(0, size), "cut to " + std::to_string(size));
  }
  for (std::size_t i = 0; i < whole.size(); i += i < 160 ? 1 : 499) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    expect_refused(damaged, "bit flipped in byte " + std::to_string(i));
  }
  expect_refused(std::string(10000, 'A'), "foreign");
  expect_refused(whole + "more", "longer");
  std::string future = whole;
  ++future[8];  // the format version
  expect_refused(future, "future version");
  fs::remove(entry());
  fs::create_directory(entry());
  EXPECT_EQ(get(), binary_of('x'));
}

TEST_F(KernelCacheTest, WhatOthersPutThereIsNeitherWaitedForNorBelievedNorFollowed) {
  get();
  const std::string whole = read_entry_bytes();
  const std::map<std::string, std::function<void()>> others{
      {"a pipe", [&] { mkfifo(entry().c_str(), 0600); }},
      {"a device", [&] { fs::create_symlink("/dev/zero", entry()); }},
      {"2 TB", [&] { write_entry_bytes(""), fs::resize_file(entry(), std::uintmax_t{2} << 40); }},
      {"for all", [&] { write_entry_bytes(whole), chmod(entry().c_str(), 0646); }}};
  for (const auto& [what, put] : others) {
    fs::remove(entry());
    put();
    expect_recompiled(what);
  }
  fs::remove_all(root_ / "cache");
  fs::create_directory(root_ / "cache");
  for (const fs::path& link : {entry().replace_extension(".kernel.tmp"), root_ / "cache/locks"}) {
    fs::create_symlink(root_ / "elsewhere", link);
  }
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_FALSE(fs::exists(root_ / "elsewhere"));
}

TEST_F(KernelCacheTest, AFolderThatOthersWriteToIsNotUsed) {
  get();
  chmod((root_ / "cache").c_str(), 0757);
  EXPECT_THAT(cache().fault(), HasSubstr("its mode 0757 lets others write to it"));
  EXPECT_FALSE(cache().contains(kKey));
  EXPECT_EQ(cache().list().at(0).fault, cache().fault());
  get();
  EXPECT_EQ(compiled(), 2);
  chmod((root_ / "cache").c_str(), 01777);  // as /tmp: each entry answers for itself
  get();
  EXPECT_EQ(compiled(), 2);
}

TEST(DistrustTest, IsOfWhatNeitherThisUserNorRootAloneHasWritten) {
  const auto distrust = [](uid_t user, gid_t group, mode_t mode) {
    struct stat status{};
    status.st_uid = user, status.st_gid = group, status.st_mode = mode;
    return distrust_of(status);
  };
  const uid_t own = geteuid(), other = own + 1;
  EXPECT_EQ(distrust(own, other, S_IFREG | 0644), "");
  EXPECT_EQ(distrust(own, own, S_IFREG | 0664), "") << "a group of the user's own";
  EXPECT_EQ(distrust(0, other, S_IFDIR | 01777), "");
  EXPECT_THAT(distrust(other, other, S_IFDIR | 01700), HasSubstr("it belongs to user "));
  EXPECT_THAT(distrust(0, other, S_IFREG | 01664), HasSubstr("its mode 1664"));
  EXPECT_THAT(distrust(own, other, S_IFDIR | 0775), HasSubstr("its mode 0775"));
}

TEST_F(KernelCacheTest, AnotherKernelsEntryUnderThisName) {
  const CacheKey other{1, 2};
  cache().get(other, kProgram, [](const Program&) { return binary_of('o'); });
  fs::copy_file(root_ / "cache" / (other.text() + ".kernel"), entry());
  expect_recompiled("another's");
}

TEST_F(KernelCacheTest, AFolderThatCannotBe) {
  std::ofstream(root_ / "cache") << "a file is in the way";
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_EQ(compiled(), 2);
}

TEST_F(KernelCacheTest, NoFolderAtAll) {
  EXPECT_EQ(KernelCache("").get(kKey, kProgram, [](const Program&) { return binary_of('n'); }),
            binary_of('n'));
  EXPECT_THAT(KernelCache("").list(), IsEmpty());
  EXPECT_EQ(KernelCache("").clear(), 0);
}

TEST_F(KernelCacheTest, AFullDiskLeavesNothingBehind) {
  fs::create_directory(root_ / "cache");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);  // then a write beyond the limit fails, as on a full disk
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Binary binary =
        cache().get(kKey, kProgram, [](const Program&) { return binary_of('x'); });
    _exit(binary == binary_of('x') ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (const auto& file : fs::directory_iterator(root_ / "cache")) {
    EXPECT_EQ(file.path().filename(), "locks");
  }
}

TEST_F(KernelCacheTest, ADeletedFolderComesBack) {
  get();
  fs::remove_all(root_ / "cache");
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_EQ(compiled(), 2);
  EXPECT_EQ(get(), binary_of('x'));
  EXPECT_EQ(compiled(), 2);
}

TEST_F(KernelCacheTest, AFailedCompilationKeepsNothing) {
  const auto failing = [](const Program&) -> Binary { throw Error(ErrorCode::kInternal, "no"); };
  EXPECT_THROW(cache().get(kKey, kProgram, failing), Error);
  EXPECT_THAT(cache().list(), IsEmpty());
  EXPECT_EQ(get(), binary_of('x'));
}

TEST_F(KernelCacheTest, ListsAndClearsItsOwnFilesOnly) {
  get();
  for (const char* name : {"mine.txt", "mine.tmp", "mine.kernel", "0123.kernel"}) {
    std::ofstream(root_ / "cache" / name) << "not the cache's";
  }
  std::ofstream(root_ / "cache" / (CacheKey{}.text() + ".kernel")) << "?";
  std::ofstream(root_ / "cache" / (CacheKey{}.text() + ".kernel.tmp")) << "?";
  const std::vector<KernelCache::Listed> listed = cache().list();
  ASSERT_EQ(listed.size(), 2u);
  int usable = 0;
  for (const KernelCache::Listed& item : listed) {
    if (item.entry) {
      ++usable;
      EXPECT_EQ(item.entry->description, "the kernel a");
      EXPECT_EQ(item.entry->architecture, "sm_90a");
      EXPECT_EQ(item.entry->binary.resources.registers, 168);
    } else {
      EXPECT_THAT(item.fault, HasSubstr("it has only"));
    }
  }
  EXPECT_EQ(usable, 1);
  EXPECT_EQ(cache().clear(), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(root_ / "cache"), {}), 4);
  EXPECT_THAT(cache().list(), IsEmpty());
}

TEST(CacheKeyTest, DependsOnEverythingThatABinaryDependsOn) {
  const Header headers[] = {{"a.h", "int a;"}, {"b.h", "int b;"}};
  const CacheKey digest_of_two = digest(headers);
  const auto key = [&](Program program, std::string_view compiler = "13.0") {
    return key_of(program, digest_of_two, compiler);
  };
  EXPECT_EQ(key(kProgram), key(kProgram));
  Program other = kProgram;
  other.description = "called something else";  // does not enter the binary
  EXPECT_EQ(key(other), key(kProgram));
  other = kProgram;
  other.kernel = "a<2>";
  EXPECT_NE(key(other), key(kProgram));
  other = kProgram;
  other.architecture = "sm_100a";
  EXPECT_NE(key(other), key(kProgram));
  other = kProgram;
  other.header = "kernels/b.h";
  EXPECT_NE(key(other), key(kProgram));
  EXPECT_NE(key(kProgram, "12.8"), key(kProgram));

  const Header changed[] = {{"a.h", "int a;"}, {"b.h", "int c;"}};
  const Header renamed[] = {{"a.h", "int a;"}, {"c.h", "int b;"}};
  const Header shifted[] = {{"a.h", "int a;b.h"}, {"", "int b;"}};
  EXPECT_NE(digest(changed), digest_of_two);
  EXPECT_NE(digest(renamed), digest_of_two);
  EXPECT_NE(digest(shifted), digest_of_two);
}

}  // namespace
}  // namespace octofold::jit
