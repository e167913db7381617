// Devices, contexts, kernels: loaded once, launched where they belong.
#include "cuda/device.h"

#include <barrier>

#include "cuda/fake_runtime.h"
#include "support/log.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

class DeviceTest : public FakeGpuTest {
 protected:
  void launch(int device, const plan::KernelPlan& kernel, Stream stream = {}) {
    const config::Sm90GemmParams params{};
    const plan::Plan<int> plan{.config = 0, .kernels = {kernel}};
    runtime().device(device).load(plan, "a test").launch(stream, &params);
  }
};

plan::KernelPlan source_of(std::string kernel) {
  return {.header = "kernels/some.h",
          .kernel = std::move(kernel),
          .description = "gemm of a test",
          .threads = 384,
          .cluster_size = 2,
          .shared_bytes = 200'000,
          .blocks = 264};
}

TEST_F(DeviceTest, DescribesItselfToThePlanner) {
  state().multiprocessors = 78;
  const plan::Gpu& gpu = runtime().device(1).gpu();
  EXPECT_EQ(gpu.compute_major, 9);
  EXPECT_EQ(gpu.compute_minor, 0);
  EXPECT_EQ(gpu.multiprocessors, 78);
  EXPECT_EQ(gpu.shared_memory_per_block, 227 * 1024);
}

TEST_F(DeviceTest, ThereIsNoThirdOfTwo) {
  for (const int index : {2, -1}) {
    EXPECT_THAT(error_of([&] { runtime().device(index); }, ErrorCode::kInvalidArgument),
                HasSubstr("does not exist: this machine shows 2 GPUs"));
  }
}

TEST_F(DeviceTest, LaunchesAsTheSourceSays) {
  int stream = 0;
  launch(0, source_of("f"), {&stream});
  EXPECT_EQ(state().dynamic_shared_size, 200'000);
  ASSERT_EQ(state().launches.size(), 1u);
  const fake::Launch& launch = state().launches[0];
  EXPECT_EQ(launch.blocks, 264u);
  EXPECT_EQ(launch.threads, 384u);
  EXPECT_EQ(launch.cluster, 2u);
  EXPECT_EQ(launch.shared_bytes, 200'000u);
  EXPECT_EQ(launch.stream, &stream);
  EXPECT_TRUE(launch.may_overlap);
}

// Kernels for those do not wait for the ones ahead.
TEST_F(DeviceTest, KernelsOfOlderGpusDoNotOverlap) {
  state().compute_major = 8;
  plan::KernelPlan kernel = source_of("f");
  kernel.cluster_size = 1;
  launch(0, kernel);
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_FALSE(state().launches[0].may_overlap);
  EXPECT_EQ(state().launches[0].cluster, 1u);
}

TEST_F(DeviceTest, EachDeviceHasItsOwnKernels) {
  for (const int device : {0, 1, 0, 1}) launch(device, source_of("f"));
  launch(1, source_of("g"));
  EXPECT_EQ(compilations_, 3);
  EXPECT_EQ(state().loads, 3);
  for (const fake::Launch& launch : state().launches) {
    EXPECT_EQ(launch.device, launch.device_of_function);
  }
  EXPECT_EQ(state().launches[1].device, 1);
}

TEST_F(DeviceTest, APrecompiledKernelIsNotCompiled) {
  precompiled_ = [](const jit::Program& program) -> std::optional<jit::Binary> {
    if (program.kernel != "f") return std::nullopt;
    return jit::Binary{.symbol = "f", .image = {'c', 'u'}, .resources = {}};
  };
  for (const char* kernel : {"f", "g", "f"}) launch(0, source_of(kernel));
  EXPECT_EQ(compilations_, 1);
  EXPECT_EQ(state().loads, 2);
}

TEST_F(DeviceTest, APrecompiledKernelIsCompiledWhereTheDriverDoesNotKnowIt) {
  precompiled_ = [](const jit::Program&) {
    return jit::Binary{.symbol = "f", .image = {'?'}, .resources = {}};
  };
  const test::Log log;
  for (int i = 0; i < 2; ++i) launch(0, source_of("f"));
  EXPECT_EQ(compilations_, 1);
  EXPECT_EQ(state().launches.size(), 2u);
  EXPECT_THAT(log.messages,
              ElementsAre(AllOf(HasSubstr("a precompiled kernel"), HasSubstr("gemm of a test"))));
}

TEST_F(DeviceTest, LeavesTheCurrentContextAsItWas) {
  launch(1, source_of("f"));
  state().launch_error = 1;
  EXPECT_THROW(launch(0, source_of("f")), Error);
  state().load_error = 200;
  EXPECT_THROW(launch(0, source_of("g")), Error);
  EXPECT_GT(state().pushes, 0);
  EXPECT_EQ(state().pushes, state().pops);
  EXPECT_EQ(state().capture_mode_changes % 2, 0);
}

TEST_F(DeviceTest, PushesNothingWhereTheContextIsCurrent) {
  launch(0, source_of("f"));
  const Driver driver(OCTOFOLD_FAKE_DRIVER);
  ContextHandle context = nullptr;
  driver.device_primary_ctx_retain(&context, 0);
  driver.ctx_push_current(context);
  const int pushes = state().pushes;
  launch(0, source_of("f"));
  EXPECT_EQ(state().pushes, pushes);
  launch(1, source_of("f"));
  EXPECT_GT(state().pushes, pushes);
  driver.ctx_pop_current(&context);
}

TEST_F(DeviceTest, EightThreadsLoadAKernelOnce) {
  runtime();  // the fixture itself is for one thread
  std::barrier start(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      launch(0, source_of("f"));
      launch(1, source_of("g"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compilations_, 2);
  EXPECT_EQ(state().loads, 2);
  EXPECT_EQ(state().launches.size(), 16u);
}

TEST_F(DeviceTest, AFailedLoadIsTriedAgain) {
  state().load_error = 700;
  EXPECT_THAT(error_of([&] { launch(0, source_of("f")); }, ErrorCode::kUnavailable),
              AllOf(HasSubstr("gemm of a test"), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")));
  state().load_error = 0;
  launch(0, source_of("f"));
  EXPECT_EQ(state().loads, 1);
}

TEST_F(DeviceTest, MoreSharedMemoryThanThereIs) {
  state().shared_memory_per_block = 99 * 1024;
  EXPECT_THAT(error_of([&] { launch(0, source_of("f")); }, ErrorCode::kUnsupported),
              AllOf(HasSubstr("gemm of a test: needs 200000 bytes of shared memory"),
                    HasSubstr("has 101376")));
  EXPECT_EQ(compilations_, 0);
}

TEST_F(DeviceTest, ALaunchThatFailsNamesTheKernelAndItsShape) {
  state().launch_error = 701;
  EXPECT_THAT(error_of([&] { launch(0, source_of("f")); }, ErrorCode::kUnsupported),
              AllOf(HasSubstr("gemm of a test"), HasSubstr("264 blocks of 384 threads"),
                    HasSubstr("200000 bytes"), HasSubstr("LAUNCH_OUT_OF_RESOURCES")));
}

TEST_F(DeviceTest, AStreamOfAnotherDeviceIsNamed) {
  state().launch_error = 400;
  EXPECT_THAT(error_of([&] { launch(0, source_of("f")); }, ErrorCode::kInvalidArgument),
              HasSubstr("expected a stream of the tensors' device"));
}

struct Problem {
  int size = 0;
  template <typename Visit>
  void visit(Visit&& field) const {
    field("size", size);
  }
  friend bool operator==(const Problem&, const Problem&) = default;
};

TEST_F(DeviceTest, AProblemIsPlannedOncePerDevice) {
  int planned = 0;
  const auto prepare = [&](int device, int size) {
    return runtime().device(device).prepared(Problem{size}, [&] {
      ++planned;
      return plan::Plan<int>{.config = size, .kernels = {source_of("f")}};
    });
  };
  EXPECT_EQ(prepare(0, 7).config, 7);
  EXPECT_EQ(prepare(0, 7).config, 7);
  EXPECT_EQ(planned, 1);
  EXPECT_EQ(prepare(0, 8).config, 8);
  EXPECT_EQ(prepare(1, 7).config, 7);
  EXPECT_EQ(planned, 3);
  EXPECT_EQ(compilations_, 2);  // the kernel is the same for all sizes
}

TEST_F(DeviceTest, KernelsOfAPlanAreLaunchedInTheirOrder) {
  plan::Plan<int> plan{.config = 0, .kernels = {source_of("f"), source_of("g")}};
  plan.kernels[1].blocks = 2;
  const config::Sm90GemmParams params{};
  runtime().device(0).load(plan, "a test").launch({}, &params);
  ASSERT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(state().launches[0].blocks, 264u);
  EXPECT_EQ(state().launches[1].blocks, 2u);
}

}  // namespace
}  // namespace octofold::cuda
