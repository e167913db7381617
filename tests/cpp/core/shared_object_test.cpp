#include "core/shared_object.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/test.h"

namespace octofold::core {
namespace {

namespace fs = std::filesystem;

// A folder for temporary files that is the test's alone.
class SharedObjectTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    setenv("TMPDIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    fs::remove_all(folder_);
  }

  std::string folder_ = (fs::temp_directory_path() / "octofold-objects-XXXXXX").string();
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
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SharedObjectTest, WithoutAFolderForTheCopyThereIsNone) {
  setenv("TMPDIR", (folder_ + "/none").c_str(), 1);
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
