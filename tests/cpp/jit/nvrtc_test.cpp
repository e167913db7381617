// NVRTC itself, where there is one: OCTOFOLD_NVRTC names it, and `make test-cpp` does.
#include "jit/nvrtc.h"

#include "support/log.h"
#include "support/nvrtc.h"
#include "support/sass.h"
#include "support/test.h"

namespace octofold::jit {
namespace {

constexpr Header kHeaders[] = {
    {"kernels/add.h", R"(#pragma once
#include "kernels/shape.h"
template <Shape kShape> __global__ void add(float* x) { x[threadIdx.x] += kShape.term; }
)"},
    {"kernels/broken.h", "template <int k> __global__ void broken(float* x) { x = nonsense; }\n"},
    {"kernels/shape.h", "#pragma once\nstruct Shape { int term = 1; };\n"},
    {"kernels/spill.h", R"(template <int k> __global__ void spill(int* p, int n) {
  int a[40];
  for (int i = 0; i < 40; ++i) a[i] = p[i];
  for (int i = 0; i < n; ++i) p[i] = a[(i * 7) % 40];
}
)"},
};

using NvrtcTest = test::NvrtcTest<>;

TEST_F(NvrtcTest, CompilesAKernelThatIsNamedByAConfiguration) {
  const Binary binary =
      compile({"kernels/add.h", "add<Shape{.term = 3}>", "sm_90a", "add 3"}, kHeaders);
  EXPECT_THAT(binary.symbol, HasSubstr("add"));
  EXPECT_GT(binary.image.size(), 500u);
  EXPECT_GT(binary.resources.registers, 0);
  EXPECT_EQ(binary.resources.spill_store_bytes, 0);
  EXPECT_EQ(test::count_operations(binary.image, test::SassOperation::kLdl), 0);
}

// The driver translates it for whatever GPU there is.
TEST_F(NvrtcTest, CompilesToPtxForAnArchitectureThatIsNoGpus) {
  const Binary binary =
      compile({"kernels/add.h", "add<Shape{.term = 3}>", "compute_80", "add 3"}, kHeaders);
  const std::string_view text(binary.image.data(), binary.image.size());
  EXPECT_THAT(text, HasSubstr(".target sm_80"));
  EXPECT_THAT(text, HasSubstr(binary.symbol));
  EXPECT_EQ(text.back(), '\0');
  EXPECT_EQ(binary.resources, ResourceUse{});
}

TEST_F(NvrtcTest, TheSameProgramGivesTheSameBytes) {
  const Program program{"kernels/add.h", "add<Shape{.term = 3}>", "sm_90a", "add 3"};
  EXPECT_EQ(compile(program, kHeaders), compile(program, kHeaders));
}

TEST_F(NvrtcTest, ReportsWhatIsKeptInLocalMemory) {
  const Binary binary = compile({"kernels/spill.h", "spill<1>", "sm_90a", "spill"}, kHeaders);
  EXPECT_GE(binary.resources.stack_bytes, 160);
  EXPECT_GT(test::count_operations(binary.image, test::SassOperation::kLdl), 0);
  EXPECT_GT(test::count_operations(binary.image, test::SassOperation::kStl), 0);
}

TEST_F(NvrtcTest, AnErrorNamesTheKernelItsConfigurationAndTheLine) {
  const test::Log log;
  try {
    compile({"kernels/broken.h", "broken<7>", "sm_90a", "the broken kernel"}, kHeaders);
    ADD_FAILURE() << "it compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("the broken kernel"));
    EXPECT_THAT(error.what(), HasSubstr("nonsense"));
  }
  EXPECT_THAT(log.text(), AllOf(HasSubstr("broken<7>"), HasSubstr("kernels/broken.h")));
}

TEST_F(NvrtcTest, AnArchitectureThatItDoesNotKnow) {
  EXPECT_THROW(compile({"kernels/add.h", "add<Shape{}>", "sm_12", "add"}, kHeaders), Error);
}

TEST_F(NvrtcTest, OneOfALaterCudaThanTheDriverIsPassedOver) {
  const int cuda = compiler_cuda();
  set_newest_cuda(11);
  const Component too_new = probe_nvrtc();
  set_newest_cuda(cuda);
  EXPECT_FALSE(too_new.available);
  EXPECT_THAT(too_new.detail, HasSubstr("whose kernels a driver of CUDA 11 does not load"));
  EXPECT_TRUE(probe_nvrtc().available);
}

TEST_F(NvrtcTest, ThreadsCompileAtOnce) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      EXPECT_NO_THROW(compile({"kernels/add.h", "add<Shape{}>", "sm_90a", "add"}, kHeaders));
    });
  }
}

}  // namespace
}  // namespace octofold::jit
