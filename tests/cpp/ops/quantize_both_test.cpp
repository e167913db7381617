#include <array>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "octofold/octofold.h"

#include "support/random.h"

namespace octofold {
namespace {

using testing::HasSubstr;

// An FP8 matrix with its scales.
struct Cast {
  Cast(std::int64_t row_count, std::int64_t col_count, Granularity unit,
       DType format = DType::kE4M3)
      : rows(row_count),
        cols(col_count),
        granularity(unit),
        dtype(format),
        scale_shape(octofold::scale_shape(unit, row_count, col_count)),
        codes(static_cast<std::size_t>(row_count * col_count), 0xAA) {
    std::size_t scales = 1;
    for (const std::int64_t size : scale_shape) scales *= static_cast<std::size_t>(size);
    scale.assign(scales, -1.0f);
  }

  MutableScaledTensorView view() {
    const bool is_vector = scale_shape.size() == 1;
    return {matrix(codes.data(), dtype, rows, cols),
            is_vector ? vector(scale.data(), DType::kFloat32, scale_shape[0])
                      : matrix(scale.data(), DType::kFloat32, scale_shape[0], scale_shape[1]),
            granularity};
  }

  std::int64_t rows, cols;
  Granularity granularity;
  DType dtype;
  std::vector<std::int64_t> scale_shape;
  std::vector<std::uint8_t> codes;
  std::vector<float> scale;
};

class QuantizeBothTest : public testing::Test {
 protected:
  static constexpr std::int64_t kRows = 130, kCols = 300;

  QuantizeBothTest() : data_(kRows * kCols) {
    test::Random random;
    std::normal_distribution<float> normal;
    for (float& value : data_) value = normal(random);
  }
  TensorView x() const { return matrix(data_.data(), DType::kFloat32, kRows, kCols); }

  std::string error_of(const MutableScaledTensorView& out,
                       const MutableScaledTensorView& out_transposed,
                       const QuantizeOptions& options = {}) {
    try {
      quantize_both(x(), out, out_transposed, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "no error";
  }

  std::vector<float> data_;
};

TEST_F(QuantizeBothTest, EqualsTwoCasts) {
  for (const auto granularity : {Granularity::kTensor, Granularity::kChannel,
                                 Granularity::kBlock1x128, Granularity::kBlock128x128}) {
    QuantizeOptions options{.profile = CastProfile::kVllm, .power_of_two = true};
    Cast out(kRows, kCols, granularity), transposed(kCols, kRows, granularity);
    quantize_both(x(), out.view(), transposed.view(), options);

    Cast alone(kRows, kCols, granularity), transposed_alone(kCols, kRows, granularity);
    quantize(x(), alone.view(), options);
    options.transpose = true;
    quantize(x(), transposed_alone.view(), options);
    EXPECT_EQ(out.codes, alone.codes);
    EXPECT_EQ(out.scale, alone.scale);
    EXPECT_EQ(transposed.codes, transposed_alone.codes);
    EXPECT_EQ(transposed.scale, transposed_alone.scale);
  }
}

TEST_F(QuantizeBothTest, NamesTheWrongArgument) {
  const auto block = Granularity::kBlock1x128;
  Cast out(kRows, kCols, block), transposed(kCols, kRows, block);
  EXPECT_THAT(error_of(out.view(), transposed.view(), {.transpose = true}),
              HasSubstr("options.transpose"));
  EXPECT_THAT(error_of(out.view(), out.view()), HasSubstr("out_transposed"));  // its shape
  Cast tensor(kCols, kRows, Granularity::kTensor), e5m2(kCols, kRows, block, DType::kE5M2);
  EXPECT_THAT(error_of(out.view(), tensor.view()), HasSubstr("granularity 1x128"));
  EXPECT_THAT(error_of(out.view(), e5m2.view()), HasSubstr("out_transposed"));

  MutableScaledTensorView overlapping = transposed.view();
  overlapping.data.data = out.codes.data();
  EXPECT_THAT(error_of(out.view(), overlapping), HasSubstr("out_transposed"));
  overlapping = transposed.view();
  overlapping.scale.data = out.scale.data();
  EXPECT_THAT(error_of(out.view(), overlapping), HasSubstr("out_transposed.scale"));
}

}  // namespace
}  // namespace octofold
