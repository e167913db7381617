// A driver that is missing or lacks something is explained before anything is computed with it. The
// drivers that there are differ from machine to machine.
#include "cuda/driver.h"

#include <sys/wait.h>
#include <unistd.h>

#include "cuda/fake_runtime.h"
#include "cuda/runtime.h"
#include "jit/nvrtc.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

class DriverTest : public FakeGpuTest {};

std::string opening_error(const char* library) {
  return error_of([&] { Driver driver(library); }, ErrorCode::kUnavailable);
}

TEST_F(DriverTest, AMissingDriverIsNamed) {
  EXPECT_THAT(opening_error("libcuda-of-no-machine.so.1"),
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("libcuda-of-no-machine.so.1")));
}

TEST_F(DriverTest, AnotherLibraryIsNotTakenForTheDriver) {
  EXPECT_THAT(opening_error("libc.so.6"), HasSubstr("not a CUDA driver: it lacks cuInit"));
}

TEST_F(DriverTest, AnOldDriverIsTurnedDown) {
  state().version = 11080;
  EXPECT_THAT(opening_error(OCTOFOLD_FAKE_DRIVER),
              HasSubstr("too old: expected one for CUDA 12.0 or later, got CUDA 11.8"));
}

TEST_F(DriverTest, KernelsAreOfNoLaterCudaThanTheDriver) {
  state().version = 12080;
  EXPECT_TRUE(probe_driver(OCTOFOLD_FAKE_DRIVER).driver.available);
  EXPECT_EQ(jit::newest_cuda(), 12);
  state().version = 13000;
  runtime();
  EXPECT_EQ(jit::newest_cuda(), 13);
}

TEST_F(DriverTest, AMachineWithoutAGpuIsExplained) {
  state().init_error = 100;
  EXPECT_THAT(opening_error(OCTOFOLD_FAKE_DRIVER),
              AllOf(HasSubstr("CUDA 13.0 driver"), HasSubstr("CUDA_ERROR_NO_DEVICE")));
}

TEST_F(DriverTest, ErrorsWithoutANameAreNumbered) {
  const Driver driver(OCTOFOLD_FAKE_DRIVER);
  EXPECT_EQ(driver.describe(12345), "CUDA error 12345");
  EXPECT_EQ(driver.describe(1), "CUDA_ERROR_INVALID_VALUE (what the driver says)");
}

TEST_F(DriverTest, AProbeListsTheGpus) {
  const DriverProbe probe = probe_driver(OCTOFOLD_FAKE_DRIVER);
  EXPECT_TRUE(probe.driver.available);
  EXPECT_EQ(probe.driver.detail, "CUDA 13.0");
  ASSERT_EQ(probe.gpus.size(), 2u);
  EXPECT_EQ(probe.gpus[1].index, 1);
  EXPECT_EQ(probe.gpus[1].name, "NVIDIA Fake");
  EXPECT_EQ(probe.gpus[1].compute_major, 9);
  EXPECT_EQ(probe.gpus[1].multiprocessors, 132);
  EXPECT_EQ(probe.gpus[1].memory_bytes, 1 << 30);
}

TEST_F(DriverTest, AForkedChildIsTold) {
  const Driver driver(OCTOFOLD_FAKE_DRIVER);
  const pid_t child = fork();
  if (child == 0) {
    const std::string error =
        error_of([] { Driver::require_usable_here(); }, ErrorCode::kUnavailable);
    _exit(error.find("forked") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  Driver::require_usable_here();  // the parent goes on
}

TEST(ProbeDriverTest, AMissingDriverIsNamed) {
  const DriverProbe probe = probe_driver("libcuda-of-no-machine.so.1");
  EXPECT_FALSE(probe.driver.available);
  EXPECT_THAT(probe.driver.detail, HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(probe.driver.detail, HasSubstr("libcuda-of-no-machine.so.1"));
  EXPECT_TRUE(probe.gpus.empty());
}

TEST(ProbeDriverTest, ThisMachineGetsAnAnswer) {
  const DriverProbe probe = probe_driver();
  EXPECT_FALSE(probe.driver.detail.empty());
  for (const GpuInfo& gpu : probe.gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.compute_major, 0);
    EXPECT_GT(gpu.memory_bytes, 0);
  }
}

}  // namespace
}  // namespace octofold::cuda
