#include "core/check.h"

#include <gtest/gtest.h>
#include <vector>

namespace octofold::core {
namespace {

TEST(MemoryOverlapsTest, ByAddressRange) {
  std::vector<float> memory(100);
  const auto part = [&](std::int64_t begin, std::int64_t size) {
    return vector(memory.data() + begin, DType::kFloat32, size);
  };
  EXPECT_FALSE(memory_overlaps(part(0, 10), part(10, 10)));
  EXPECT_TRUE(memory_overlaps(part(0, 11), part(10, 10)));
  EXPECT_TRUE(memory_overlaps(part(5, 1), part(0, 10)));
  EXPECT_FALSE(memory_overlaps(part(5, 0), part(0, 10)));
}

TEST(MemoryOverlapsTest, ColumnsOfOneBuffer) {
  std::vector<float> memory(100);
  const auto columns = [&](std::int64_t begin, std::int64_t width, std::int64_t rows = 10) {
    return matrix(memory.data() + begin, DType::kFloat32, rows, width, 10);
  };
  EXPECT_FALSE(memory_overlaps(columns(0, 4), columns(4, 6)));
  EXPECT_TRUE(memory_overlaps(columns(0, 5), columns(4, 6)));
  EXPECT_FALSE(memory_overlaps(columns(6, 4), columns(0, 6)));
  EXPECT_TRUE(memory_overlaps(columns(6, 4), columns(0, 7)));
  // A slice that starts in another row still meets the same columns.
  EXPECT_TRUE(memory_overlaps(columns(0, 5), columns(23, 4, 5)));
  EXPECT_FALSE(memory_overlaps(columns(0, 5), columns(25, 4, 5)));
}

TEST(MemoryOverlapsTest, DifferentDevicesNeverOverlap) {
  float value = 0;
  const TensorView host = vector(&value, DType::kFloat32, 1);
  TensorView device = host;
  device.device = {DeviceType::kCuda, 0};
  EXPECT_TRUE(memory_overlaps(host, host));
  EXPECT_FALSE(memory_overlaps(host, device));
}

}  // namespace
}  // namespace octofold::core
