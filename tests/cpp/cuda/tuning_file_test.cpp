// Products follow a table of measured choices, and are planned where there is none to follow.
#include "cuda/tuning_file.h"

#include <fstream>

#include "core/format.h"
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "plan/problem_text.h"
#include "plan/product.h"
#include "plan/tuning.h"
#include "support/gpu_product.h"
#include "support/log.h"
#include "support/product_problems.h"
#include "support/test.h"
#include "support/test_folder.h"

namespace octofold::cuda {
namespace {

namespace fs = std::filesystem;
using testing::Contains;

// The process reads OCTOFOLD_TUNING once. Other tests of this program find no file there.
class OwnFile : public testing::Environment {
 public:
  OwnFile() { setenv("OCTOFOLD_TUNING", file().c_str(), 1); }
  fs::path file() const { return folder_ / "table.json"; }

 private:
  const test::TestFolder folder_;
};
const auto* const kOwnFile = static_cast<OwnFile*>(testing::AddGlobalTestEnvironment(new OwnFile));

// test::product()'s.
const plan::GemmProblem kProduct{
    .product = {
        .m = 1000, .n = 512, .k = 640, .form = {.b = {DType::kE5M2, Granularity::kBlock128x128}}}};
constexpr const char* kCandidate = "256x128.w2.c1x2x1.b1.early";  // none that is planned for it

class TuningFileTest : public FakeGpuTest {
 protected:
  ~TuningFileTest() override { fs::remove_all(kOwnFile->file()); }

  void write(std::string_view candidate, std::string_view gpu = "NVIDIA Fake") {
    std::ofstream(kOwnFile->file()) << core::format(
        R"({{"octofold": "{}", "gpu": "{}", "compute_capability": "9.0", "multiprocessors": 132,
            "products": {{"{}": {{"candidate": "{}"}}}}}})",
        OCTOFOLD_VERSION, gpu, plan::text_of(kProduct), candidate);
  }

  // Threads of a block of the kernel that computes the product.
  unsigned threads_of(const core::Product& product = test::product(1000, 512, 640)) {
    multiply(runtime().device(0), product, {});
    return state().launches.back().threads;
  }

  const test::Log logged_;
  const std::vector<std::string>& log_ = logged_.messages;
};

TEST_F(TuningFileTest, WhatIsMeasuredIsTaken) {
  write(kCandidate);
  EXPECT_EQ(threads_of(), 384u);
  EXPECT_EQ(threads_of(), 384u);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("table.json' has 1 products")));
  // Others are planned: of another size, and elsewhere than TMA reaches.
  EXPECT_EQ(threads_of(test::product(1001, 512, 640)), 256u);
  core::Product elsewhere = test::product(1000, 512, 640);
  elsewhere.a.data.strides[0] = 641;
  threads_of(elsewhere);
  EXPECT_NE(state().launches.back().blocks, state().launches.front().blocks);
}

TEST_F(TuningFileTest, TheLibrarysTableIsFollowedWhereTheUsersHasNothing) {
  state().device_name = "NVIDIA H200";
  const plan::GemmProblem problem = plan::as_allocated({.product = {64, 7168, 16'384}});
  const plan::Tuning table = plan::shipped_tuning(plan::kHopper, "NVIDIA H200");
  const auto cluster_of = [](const auto& plan) {
    return static_cast<unsigned>(plan.kernels.front().cluster_size);
  };
  const unsigned named = cluster_of(test::sm90_plan(problem, table.candidate(problem)));
  const unsigned planned = cluster_of(test::sm90_plan(problem));
  ASSERT_NE(named, planned);
  core::Product product = test::product(64, 7168, 16'384);
  for (const auto& [b, cluster] : {std::pair(DType::kE4M3, named), {DType::kE5M2, planned}}) {
    product.b.data.dtype = b;  // the table has none of e5m2
    threads_of(product);
    EXPECT_EQ(state().launches.back().cluster, cluster);
  }
}

TEST_F(TuningFileTest, ACandidateThatThereIsNotIsNamed) {
  write("64x17");
  EXPECT_EQ(threads_of(), 256u);
  EXPECT_THAT(log_, Contains(AllOf(HasSubstr("m 1000, n 512, k 640"),
                                   HasSubstr("expected one of 256x128"))));
}

TEST_F(TuningFileTest, WhatCannotBeReadIsIgnored) {
  fs::create_directory(kOwnFile->file());
  EXPECT_EQ(threads_of(), 256u);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("expected a regular file, got a folder")));
}

TEST_F(TuningFileTest, LargeFilesAreNotRead) {
  write(kCandidate);
  fs::resize_file(kOwnFile->file(), (16 << 20) + 1);
  const TuningFile read = read_tuning(plan::kHopper, "NVIDIA Fake");
  EXPECT_THAT(read.fault, HasSubstr("at most 16777216 bytes, got 16777217"));
  EXPECT_EQ(read.tuning.size(), 0u);
  EXPECT_EQ(read.file, kOwnFile->file());
}

}  // namespace
}  // namespace octofold::cuda
