// Rotary embeddings on the CPU: what the public C++ call makes, takes and refuses. Values are
// compared with transformers' in tests/python/test_rotary.py.
#include "octofold/rotary.h"

#include "octofold/octofold.h"

#include "support/test.h"

namespace octofold {
namespace {

class RotaryTest : public testing::Test {
 protected:
  RotaryArguments arguments() {
    return {.x = {x_.data(), DType::kFloat32, 3, {1, 2, 4}, {8, 4, 1}},
            .cos = matrix(cos_.data(), DType::kFloat32, 1, 4),
            .sin = matrix(sin_.data(), DType::kFloat32, 1, 4)};
  }
  MutableTensorView y() { return {y_.data(), DType::kFloat32, 3, {1, 2, 4}, {8, 4, 1}}; }

  std::string error(auto&& spoil) {
    RotaryArguments given = arguments();
    MutableTensorView out = y();
    spoil(given, out);
    return test::error_of([&] { rotary(given, out); });
  }

  std::vector<float> x_{1, 2, 3, 4, 5, 6, 7, 8}, cos_{2, 3, 5, 7}, sin_{11, 13, 17, 19};
  std::vector<float> y_ = std::vector<float>(9, -1);
};

TEST_F(RotaryTest, PairsAreHalfAHeadApart) {
  rotary(arguments(), y());
  EXPECT_EQ(y_, (std::vector<float>{2 - 33, 6 - 52, 15 + 17, 28 + 38, 10 - 77, 18 - 104, 35 + 85,
                                    56 + 114, -1}));
}

// ⟨rotary(x), d⟩ = ⟨x, inverse(d)⟩, with halves of cos and sin that differ.
TEST_F(RotaryTest, TheInverseIsTheTranspose) {
  rotary(arguments(), y());
  const std::vector<float> d{3, -1, 4, 1, -5, 9, 2, 6};
  const float expected = std::inner_product(d.begin(), d.end(), y_.begin(), 0.0f);
  RotaryArguments given = arguments();
  given.x.data = d.data();
  given.inverse = true;
  rotary(given, y());
  EXPECT_EQ(std::inner_product(x_.begin(), x_.end(), y_.begin(), 0.0f), expected);
}

TEST_F(RotaryTest, OfNothing) {
  RotaryArguments given = arguments();
  given.x = {nullptr, DType::kFloat32, 4, {3, 0, 2, 4}, {0, 8, 4, 1}};
  given.cos = given.sin = {nullptr, DType::kFloat32, 3, {3, 0, 4}, {0, 4, 1}};
  EXPECT_EQ(test::error_of(
                [&] { rotary(given, {nullptr, DType::kFloat32, 4, {3, 0, 2, 4}, {0, 8, 4, 1}}); }),
            "no error");
}

TEST_F(RotaryTest, NamesWhatIsWrong) {
  EXPECT_EQ(error([](auto&, auto&) {}), "no error");
  EXPECT_THAT(error([](auto& a, auto&) { a.x.rank = 2; }),
              HasSubstr("rotary: argument 'x': expected [tokens, heads, head_dim] or [batch"));
  EXPECT_THAT(error([](auto& a, auto&) { a.x.shape[2] = 3; }),
              HasSubstr("'x': expected an even head_dim, got 3"));
  EXPECT_THAT(error([](auto& a, auto&) { a.x.dtype = DType::kE4M3; }), HasSubstr("'x'"));
  EXPECT_THAT(error([](auto& a, auto&) { a.x.strides[2] = 2; }),
              HasSubstr("'x': expected a contiguous last dimension"));
  EXPECT_THAT(error([](auto& a, auto&) { a.x.data = nullptr; }), HasSubstr("'x'"));
  EXPECT_THAT(error([](auto& a, auto&) { a.cos.shape[0] = 2; }),
              HasSubstr("'cos': expected [1, 4], [1, 1, 4] or [1, 1, 4], as x has tokens"));
  EXPECT_THAT(error([](auto& a, auto&) { a.sin.shape[1] = 2; }), HasSubstr("'sin': expected [1"));
  EXPECT_THAT(error([](auto& a, auto&) { a.sin.rank = 1; }), HasSubstr("'sin': expected [1"));
  EXPECT_THAT(error([](auto& a, auto&) { a.cos.dtype = DType::kBFloat16; }), HasSubstr("'cos'"));
  EXPECT_THAT(error([](auto& a, auto&) { a.cos.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("'cos'"));
  EXPECT_THAT(error([](auto&, auto& out) { out.shape[1] = 1; }), HasSubstr("'y'"));
  EXPECT_THAT(error([](auto&, auto& out) { out.dtype = DType::kFloat16; }), HasSubstr("'y'"));
  EXPECT_THAT(error([](auto&, auto& out) { out.strides[1] = 5; }),
              HasSubstr("'y': expected a contiguous tensor"));
  EXPECT_THAT(error([](auto&, auto& out) { out.data = nullptr; }), HasSubstr("'y'"));
  EXPECT_THAT(error([&](auto&, auto& out) { out.data = x_.data(); }),
              HasSubstr("'y': expected memory of its own, apart from 'x'"));
  EXPECT_THAT(error([&](auto&, auto& out) { out.data = sin_.data(); }), HasSubstr("from 'sin'"));
}

}  // namespace
}  // namespace octofold
