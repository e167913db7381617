// What there is differs from machine to machine; what is missing must be explained on each.
#include "cuda/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octofold::cuda {
namespace {

using testing::HasSubstr;

TEST(ProbeDriverTest, AMissingDriverIsNamed) {
  const DriverProbe probe = probe_driver("libcuda-of-no-machine.so.1");
  EXPECT_FALSE(probe.driver.available);
  EXPECT_THAT(probe.driver.detail, HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(probe.driver.detail, HasSubstr("libcuda-of-no-machine.so.1"));
  EXPECT_TRUE(probe.gpus.empty());
}

TEST(ProbeDriverTest, AnotherLibraryIsNotTakenForTheDriver) {
  const DriverProbe probe = probe_driver("libc.so.6");
  EXPECT_FALSE(probe.driver.available);
  EXPECT_THAT(probe.driver.detail, HasSubstr("not a CUDA driver"));
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
