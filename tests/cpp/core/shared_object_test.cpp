#include "core/shared_object.h"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "support/test.h"
#include "support/test_folder.h"

namespace octofold::core {
namespace {

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

}  // namespace
}  // namespace octofold::core
