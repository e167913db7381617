// The dot product on the CPU: what the public C++ call takes and refuses. Values are compared with
// FP64 in tests/python/test_dot.py.
#include "octofold/dot.h"

#include "octofold/octofold.h"

#include "support/test.h"

namespace octofold {
namespace {

class DotTest : public testing::Test {
 protected:
  static constexpr std::int64_t kSize = 300;

  DotArguments arguments() {
    return {.a = {.data = vector(a_.data(), DType::kFloat32, kSize)},
            .b = {.data = matrix(codes_.data(), DType::kE4M3, 1, kSize),
                  .scale = vector(scales_.data(), DType::kFloat32, 3),
                  .granularity = Granularity::kBlock1x128},
            .out = vector(&out_, DType::kFloat32, 1),
            .workspace = vector(workspace_.data(), DType::kFloat32, 1)};
  }

  std::string error(auto&& spoil) {
    DotArguments given = arguments();
    spoil(given);
    return test::error_of([&] { dot(given); });
  }

  std::vector<float> a_ = std::vector<float>(kSize, 0.5f), scales_{2, 4, 8}, workspace_{0};
  std::vector<std::uint8_t> codes_ = std::vector<std::uint8_t>(kSize, 0x38);  // 1
  float out_ = -1;
};

TEST_F(DotTest, ScalesBelongToBlocks) {
  DotArguments given = arguments();
  given.b.scale = matrix(scales_.data(), DType::kFloat32, 1, 3);
  dot(given);
  EXPECT_EQ(out_, 0.5f * (128 * 2 + 128 * 4 + 44 * 8));
  given.b.granularity = Granularity::kBlock128x128;
  dot(given);
  EXPECT_EQ(out_, 0.5f * (128 * 2 + 128 * 4 + 44 * 8));
  given.b.granularity = Granularity::kTensor;
  given.b.scale = vector(scales_.data() + 2, DType::kFloat32, 1);
  dot(given);
  EXPECT_EQ(out_, 0.5f * 300 * 8);
  given.b.scale.reset();
  dot(given);
  EXPECT_EQ(out_, 150);
}

TEST_F(DotTest, OfNothingIsZero) {
  scales_[0] = std::numeric_limits<float>::quiet_NaN();
  dot({.a = {.data = vector(a_.data(), DType::kFloat32, 0)},
       .b = {.data = vector(codes_.data(), DType::kE5M2, 0),
             .scale = vector(scales_.data(), DType::kFloat32, 1)},
       .out = vector(&out_, DType::kFloat32, 1),
       .workspace = vector(workspace_.data(), DType::kFloat32, 0)});
  EXPECT_EQ(out_, 0);
  EXPECT_EQ(dot_workspace_size(0), 0);
  EXPECT_EQ(dot_workspace_size(8193), 2);
}

TEST_F(DotTest, NamesWhatIsWrong) {
  // The scale is that of a matrix of one row, which may be a vector where the codes are.
  EXPECT_THAT(error([](auto&) {}), HasSubstr("'b.scale': expected shape [1, 3]"));
  const auto spoiled = [&](auto&& spoil) {
    return error([&](DotArguments& given) {
      given.b.scale = matrix(scales_.data(), DType::kFloat32, 1, 3);
      spoil(given);
    });
  };
  EXPECT_EQ(spoiled([](auto&) {}), "no error");
  EXPECT_THAT(spoiled([](auto& d) { d.a.data.shape[0] = 7; }),
              HasSubstr("dot: argument 'b': expected K = 7, as 'a' has, got K = 300"));
  EXPECT_THAT(spoiled([&](auto& d) { d.a.data = matrix(a_.data(), DType::kFloat32, 2, 150); }),
              HasSubstr("'a': expected a vector [K], got float32 [2, 150]"));
  EXPECT_THAT(spoiled([](auto& d) { d.a.data.strides[0] = 2; }), HasSubstr("'a'"));
  EXPECT_THAT(spoiled([](auto& d) { d.a.data.dtype = DType::kInt32; }), HasSubstr("got int32"));
  EXPECT_THAT(spoiled([](auto& d) { d.b.data.dtype = DType::kFloat16; }),
              HasSubstr("'b': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(spoiled([](auto& d) { d.out.shape[0] = 2; }),
              HasSubstr("'out': expected one element, got float32 [2]"));
  EXPECT_THAT(spoiled([](auto& d) { d.out.dtype = DType::kFloat16; }), HasSubstr("'out'"));
  EXPECT_THAT(spoiled([](auto& d) { d.out.data = nullptr; }), HasSubstr("'out'"));
  EXPECT_THAT(spoiled([&](auto& d) { d.out.data = a_.data() + 9; }),
              HasSubstr("'out': expected memory of its own, apart from 'a'"));
  EXPECT_THAT(spoiled([&](auto& d) { d.out.data = scales_.data() + 1; }),
              HasSubstr("'out': expected memory of its own, apart from 'b.scale'"));
  EXPECT_THAT(spoiled([&](auto& d) { d.workspace.data = &out_; }),
              HasSubstr("'workspace': expected memory of its own, apart from 'out'"));
  EXPECT_THAT(spoiled([](auto& d) { d.workspace.shape[0] = 0; }), HasSubstr("'workspace'"));
  EXPECT_THAT(spoiled([](auto& d) { d.b.data.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("'b.scale'"));
  EXPECT_THAT(spoiled([](auto& d) { d.a.data.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("'b': expected a tensor on cuda:0"));
}

}  // namespace
}  // namespace octofold
