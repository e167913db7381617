#include "core/check.h"

#include "support/test.h"

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

// Backwards, the rows lie where they lay.
TEST(MemoryOverlapsTest, RowsThatGoBackwards) {
  std::vector<float> memory(100);
  const auto columns = [&](std::int64_t begin, std::int64_t width) {
    return matrix(memory.data() + begin, DType::kFloat32, 10, width, 10);
  };
  const auto backwards = [&](std::int64_t begin, std::int64_t width) {
    auto view = columns(90 + begin, width);
    view.strides[0] = -10;
    return view;
  };
  EXPECT_FALSE(memory_overlaps(backwards(0, 4), columns(4, 6)));
  EXPECT_TRUE(memory_overlaps(backwards(0, 5), columns(4, 6)));
  EXPECT_FALSE(memory_overlaps(columns(4, 6), backwards(0, 4)));
  EXPECT_TRUE(memory_overlaps(backwards(0, 4), backwards(3, 4)));
  // The range ends where the first row does.
  const MutableTensorView behind = vector(memory.data() + 94, DType::kFloat32, 6);
  EXPECT_FALSE(memory_overlaps(backwards(0, 4), behind));
  const MutableTensorView first = vector(memory.data(), DType::kFloat32, 1);
  EXPECT_TRUE(memory_overlaps(backwards(0, 4), first));
}

// A row that counts many times is one, among the columns of a buffer too.
TEST(MemoryOverlapsTest, RowsThatAreRepeated) {
  std::vector<float> memory(100);
  const auto repeated = [&](std::int64_t begin, std::int64_t width) {
    auto view = matrix(memory.data() + begin, DType::kFloat32, 8, width);
    view.strides[0] = 0;
    return view;
  };
  const auto left = matrix(memory.data(), DType::kFloat32, 10, 6, 10);
  EXPECT_FALSE(memory_overlaps(repeated(36, 4), left));
  EXPECT_FALSE(memory_overlaps(left, repeated(36, 4)));
  EXPECT_TRUE(memory_overlaps(repeated(35, 4), left));
  EXPECT_TRUE(memory_overlaps(repeated(36, 5), left));
  EXPECT_FALSE(memory_overlaps(repeated(0, 50), repeated(50, 50)));
  EXPECT_TRUE(memory_overlaps(repeated(0, 51), repeated(50, 50)));
}

// Rows that overlap each other are between any two.
TEST(MemoryOverlapsTest, RowsThatOverlap) {
  std::vector<float> memory(200);
  const TensorView windows{memory.data(), DType::kFloat32, 2, {8, 30}, {10, 1}};
  EXPECT_TRUE(memory_overlaps(matrix(memory.data() + 95, DType::kFloat32, 10, 5, 10), windows));
  EXPECT_FALSE(memory_overlaps(matrix(memory.data() + 100, DType::kFloat32, 9, 5, 10), windows));
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
