// The levels of docs/kernels/ladder.md, compiled for Hopper: no register leaves the register file.
#include <fstream>

#include "support/kernel_sample.h"
#include "support/nvrtc.h"
#include "support/sass.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

struct Level {
  int products;  // of warps or of warpgroups
  test::SassOperation product;
};

// The products in the program of a level, and in those of the levels that it includes. A product of
// e4m3 by warps is two of FP16 on Hopper.
const std::map<int, Level> kLevels{
    {1, {0, test::SassOperation::kHmma}},   {2, {64, test::SassOperation::kHmma}},
    {3, {4, test::SassOperation::kQgmma}},  {4, {12, test::SassOperation::kQgmma}},
    {5, {20, test::SassOperation::kQgmma}}, {6, {28, test::SassOperation::kQgmma}},
};

using LadderTest = test::NvrtcTest<testing::TestWithParam<std::pair<const int, Level>>>;

TEST_P(LadderTest, CompilesWithoutSpills) {
  const auto& [number, level] = GetParam();
  const std::string folder = OCTOFOLD_TEST_CASES_DIR "/../../";
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string name :
       {"problem", "level_1", "level_2", "level_3", "level_4", "level_5", "level_6"}) {
    std::ifstream file(folder + "examples/kernels/" + name + ".h");
    ASSERT_TRUE(file) << name;
    files.emplace_back("examples/kernels/" + name + ".h",
                       std::string(std::istreambuf_iterator(file), {}));
  }
  std::vector<jit::Header> headers(kernel_headers().begin(), kernel_headers().end());
  for (const auto& [name, text] : files) headers.push_back({name, text});

  const std::string name = "level_" + std::to_string(number);
  const jit::Program program{"examples/kernels/" + name + ".h",
                             "octofold::ladder::" + name + "::kernel", "sm_90a", name};
  if (test::kKernelSample != nullptr && !test::kKernelSample->takes(program)) return;
  const jit::Binary binary = jit::compile(program, headers);
  EXPECT_EQ(binary.resources.spill_store_bytes, 0);
  EXPECT_EQ(binary.resources.stack_bytes, 0);
  EXPECT_EQ(test::count_operations(binary.image, test::SassOperation::kLdl), 0);
  EXPECT_EQ(test::count_operations(binary.image, test::SassOperation::kStl), 0);
  EXPECT_EQ(test::count_operations(binary.image, level.product), level.products);
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, LadderTest, testing::ValuesIn(kLevels), [](const auto& level) {
  return "Level" + std::to_string(level.param.first);
});

}  // namespace
}  // namespace octofold::cuda
