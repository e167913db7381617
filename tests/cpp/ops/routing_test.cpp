// Routing on the CPU: what the public C++ call takes beyond what Python gives it. Values are
// compared with torch's in tests/python/test_routing.py.
#include "octofold/routing.h"

#include "octofold/octofold.h"

#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;
using testing::Each;

using Index = std::vector<std::int32_t>;
using Floats = std::vector<float>;

MutableTensorView index_of(Index& values) {
  return vector(values.data(), DType::kInt32, std::ssize(values));
}
MutableTensorView index_of(Index& values, std::int64_t rows) {
  return matrix(values.data(), DType::kInt32, rows, std::ssize(values) / rows);
}
MutableTensorView floats_of(Floats& values, std::int64_t rows) {
  return matrix(values.data(), DType::kFloat32, rows, std::ssize(values) / rows);
}

class TopKTest : public testing::Test {
 protected:
  std::string error(auto&& spoil) {
    TopKArguments arguments{.logits = floats_of(logits_, 2),
                            .ids = index_of(ids_, 2),
                            .weights = floats_of(weights_, 2)};
    TopKOptions options{.scoring = Scoring::kSigmoid, .groups = 2};
    spoil(arguments, options);
    return error_of([&] { top_k(arguments, options); });
  }

  Floats logits_ = Floats(2 * 8, 1.0f), weights_ = Floats(2 * 3), bias_ = Floats(8);
  Index ids_ = Index(2 * 3);
};

TEST_F(TopKTest, NamesWhatIsWrong) {
  EXPECT_EQ(error([](auto&, auto&) {}), "no error");
  EXPECT_THAT(ids_, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(error([](auto&, auto& o) { o.scoring = static_cast<Scoring>(5); }),
              HasSubstr("'scoring': expected a Scoring, got 5"));
  EXPECT_THAT(error([](auto&, auto& o) { o.scoring = Scoring::kSoftmax; }),
              HasSubstr("'groups': expected 1 for softmax, got 2"));
  EXPECT_THAT(error([](auto&, auto& o) { o.groups = 3; }),
              HasSubstr("'groups': expected a divisor of the 8 experts, got 3"));
  EXPECT_THAT(error([](auto&, auto& o) { o.groups = 0; }), HasSubstr("'groups'"));
  EXPECT_THAT(error([](auto&, auto& o) { o.groups = 8, o.top_groups = 8; }),
              HasSubstr("'groups': expected groups of at least 2 experts, got 8"));
  EXPECT_THAT(error([](auto&, auto& o) { o.top_groups = 3; }),
              HasSubstr("'top_groups': expected from 1 to the 2 groups, got 3"));
  EXPECT_THAT(error([](auto&, auto& o) { o.groups = 4; }),
              HasSubstr("'top_groups': expected so many groups that they hold 3 experts, got 1"));
  EXPECT_THAT(error([](auto&, auto& o) { o.scaling_factor = NAN; }), HasSubstr("'scaling_factor'"));
  EXPECT_THAT(error([&](auto& a, auto& o) {
                o = {};
                a.bias = vector(bias_.data(), DType::kFloat32, 8);
              }),
              HasSubstr("'bias': expected none for softmax, got one"));
  EXPECT_THAT(error([&](auto& a, auto&) { a.bias = vector(bias_.data(), DType::kFloat32, 7); }),
              HasSubstr("'bias': expected shape [8], got [7]"));
  EXPECT_THAT(error([](auto& a, auto&) { a.ids.shape[1] = 9; }),
              HasSubstr("'k': expected from 1 to the 8 experts, got 9"));
  EXPECT_THAT(error([](auto& a, auto&) { a.ids.strides[0] = 4, a.ids.shape[0] = 2; }),
              HasSubstr("'ids': expected a contiguous tensor"));
  EXPECT_THAT(error([](auto& a, auto&) { a.weights.dtype = DType::kInt32; }),
              HasSubstr("'weights': expected dtype float32, got int32"));
  EXPECT_THAT(error([](auto& a, auto&) { a.weights.shape[0] = 1; }),
              HasSubstr("'weights': expected shape [2, 3], got [1, 3]"));
  EXPECT_THAT(error([](auto& a, auto&) { a.logits.dtype = DType::kE4M3; }),
              HasSubstr("'logits': expected dtype float32 or float16 or bfloat16, got e4m3"));
  EXPECT_THAT(error([](auto& a, auto&) { a.weights.data = a.ids.data; }),
              HasSubstr("'weights': expected memory of its own, apart from 'ids'"));
  EXPECT_THAT(error([](auto& a, auto&) { a.ids.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("'ids': expected a tensor on cpu, got one on cuda:0"));
}

TEST_F(TopKTest, GradientNamesWhatIsWrong) {
  Floats gradient(weights_.size(), 1.0f), result(logits_.size());
  const auto error = [&](auto&& spoil) {
    TopKGradientArguments arguments{.gradient = floats_of(gradient, 2),
                                    .logits = floats_of(logits_, 2),
                                    .ids = index_of(ids_, 2),
                                    .logits_gradient = floats_of(result, 2)};
    spoil(arguments);
    return error_of([&] { top_k_gradient(arguments); });
  };
  EXPECT_EQ(error([](auto&) {}), "no error");
  ids_[4] = -1;
  EXPECT_EQ(error([](auto&) {}), "no error");
  ids_[4] = 8;
  EXPECT_EQ(error([](auto&) {}),
            "top_k_gradient: argument 'ids': expected numbers from -1 to 7, got 8 at [1, 1]");
  EXPECT_THAT(error([](auto& a) { a.logits_gradient.dtype = DType::kBFloat16; }),
              HasSubstr("'logits_gradient': expected dtype float32, got bfloat16"));
  EXPECT_THAT(error([](auto& a) { a.logits_gradient.data = const_cast<void*>(a.logits.data); }),
              HasSubstr("'logits_gradient': expected memory of its own, apart from 'logits'"));
}

class SortTest : public testing::Test {
 protected:
  std::string error(auto&& spoil) {
    workspace_.resize(as_size(sort_workspace_size(6, 4)));
    TensorView ids = index_of(ids_, 2);
    std::int64_t experts = 4;
    SortedSlots out{.offsets = index_of(offsets_),
                    .sources = index_of(sources_),
                    .positions = index_of(positions_, 2),
                    .workspace = index_of(workspace_)};
    spoil(ids, experts, out);
    return error_of([&] { sort_by_expert(ids, experts, out); });
  }

  Index ids_{3, 0, -1, 0, 3, 1}, offsets_ = Index(5), sources_ = Index(6), positions_ = Index(6);
  Index workspace_;
};

TEST_F(SortTest, SortsSlots) {
  EXPECT_EQ(error([](auto&, auto&, auto&) {}), "no error");
  EXPECT_THAT(offsets_, ElementsAre(0, 2, 3, 3, 5));
  EXPECT_THAT(sources_, ElementsAre(1, 3, 5, 0, 4, -1));
  EXPECT_THAT(positions_, ElementsAre(3, 0, -1, 1, 4, 2));
}

TEST_F(SortTest, NamesWhatIsWrong) {
  EXPECT_THAT(error([](auto&, auto& experts, auto&) { experts = -1; }),
              HasSubstr("'experts': expected a number of at least 0, below 2^31 - 1, got -1"));
  EXPECT_THAT(error([](auto&, auto& experts, auto&) { experts = 5; }),
              HasSubstr("'offsets': expected shape [6], got [5]"));
  EXPECT_THAT(error([](auto&, auto&, auto& out) { --out.workspace.shape[0]; }),
              HasSubstr("'workspace': expected shape [4], got [3]"));
  EXPECT_THAT(error([](auto& ids, auto&, auto&) { ids.dtype = DType::kFloat32; }),
              HasSubstr("'ids': expected dtype int32, got float32"));
  EXPECT_THAT(error([](auto&, auto&, auto& out) { out.sources.data = out.positions.data; }),
              HasSubstr("'positions': expected memory of its own, apart from 'sources'"));
  for (const std::int32_t id : {4, -2, std::numeric_limits<std::int32_t>::min()}) {
    ids_[3] = id;
    EXPECT_EQ(error([](auto&, auto&, auto&) {}),
              "sort_by_expert: argument 'ids': expected numbers from -1 to 3, got " +
                  std::to_string(id) + " at [1, 0]");
  }
}

class CombineTest : public testing::Test {
 protected:
  std::string error(auto&& spoil) {
    CombineArguments arguments{.y = floats_of(y_, 3),
                               .positions = TensorView(index_of(positions_, 2)),
                               .weights = floats_of(weights_, 2),
                               .out = floats_of(out_, 2)};
    spoil(arguments);
    return error_of([&] { combine(arguments); });
  }

  Floats y_{1, 2, 3, 4, 5, 6}, weights_{2, 10, 1, 3}, out_{100, 200, 300, 400};
  Index positions_{2, 0, -1, 1};
};

TEST_F(CombineTest, AddsRowsInPlace) {
  EXPECT_EQ(error([](auto&) {}), "no error");
  EXPECT_THAT(out_, ElementsAre(20, 32, 9, 12));
  EXPECT_EQ(error([](auto& a) { a.c = TensorView(a.out); }), "no error");
  EXPECT_THAT(out_, ElementsAre(40, 64, 18, 24));
  EXPECT_EQ(error([](auto& a) { a.weights.reset(); }), "no error");
  EXPECT_THAT(out_, ElementsAre(6, 8, 3, 4));
}

TEST_F(CombineTest, OfNoRows) {
  positions_ = {-1, -1, -1, -1};
  EXPECT_EQ(error([](auto& a) { a.y.shape[0] = 0; }), "no error");
  EXPECT_THAT(out_, Each(0));
}

TEST_F(CombineTest, NamesWhatIsWrong) {
  EXPECT_THAT(error([](auto& a) { a.y.shape[1] = 1; }),
              HasSubstr("'y': expected shape [3, 2], got [3, 1]"));
  EXPECT_THAT(error([](auto& a) { a.weights->shape[1] = 1; }),
              HasSubstr("'weights': expected shape [2, 2], got [2, 1]"));
  EXPECT_THAT(error([&](auto& a) { a.out = floats_of(y_, 3), a.out.shape[0] = 2; }),
              HasSubstr("'out': expected memory of its own, apart from 'y'"));
  EXPECT_THAT(error([&](auto& a) { a.c = TensorView(matrix(y_.data(), DType::kBFloat16, 2, 2)); }),
              HasSubstr("'c': expected dtype float32, got bfloat16"));
  EXPECT_THAT(error([&](auto& a) {
                a.c = TensorView(a.out);
                a.c->data = out_.data() + 1;
                a.c->shape = {2, 2};
                a.c->strides[0] = 1;
              }),
              HasSubstr("'out': expected memory of its own, apart from 'c'"));
  positions_[3] = 3;
  EXPECT_EQ(error([](auto&) {}),
            "combine: argument 'positions': expected numbers from -1 to 2, got 3 at [1, 1]");
}

TEST_F(CombineTest, GradientByWeights) {
  Floats gradient{1, 10, 100, 1000}, result(4, -1.0f);
  const auto error = [&](auto&& spoil) {
    CombineGradientArguments arguments{.gradient = floats_of(gradient, 2),
                                       .y = floats_of(y_, 3),
                                       .positions = TensorView(index_of(positions_, 2)),
                                       .weights_gradient = floats_of(result, 2)};
    spoil(arguments);
    return error_of([&] { combine_gradient(arguments); });
  };
  EXPECT_EQ(error([](auto&) {}), "no error");
  EXPECT_THAT(result, ElementsAre(65, 21, 0, 4300));
  EXPECT_THAT(error([](auto& a) { a.gradient.shape[0] = 1; }),
              HasSubstr("'gradient': expected shape [2, 2], got [1, 2]"));
  EXPECT_THAT(error([](auto& a) { a.weights_gradient.dtype = DType::kBFloat16; }),
              HasSubstr("'weights_gradient': expected dtype float32, got bfloat16"));
  positions_[0] = -2;
  EXPECT_EQ(error([](auto&) {}),
            "combine_gradient: argument 'positions': expected numbers from -1 to 2, got -2 at "
            "[0, 0]");
}

TEST(ActivationDotsTest, AreOfTheRowsOfSlots) {
  // relu², so that the numbers are whole.
  Floats gradient{1, 10, 100, 1000, 3, 5}, x{2, -1, 1, 3, 0, 2}, result(4, -1.0f);
  Index positions{0, 1, -1, 2};
  const auto error = [&](auto&& spoil) {
    ActivationDotsArguments arguments{.gradient = floats_of(gradient, 3),
                                      .x = floats_of(x, 3),
                                      .positions = TensorView(index_of(positions, 2)),
                                      .activation = Activation::kReluSquared,
                                      .dots = floats_of(result, 2)};
    spoil(arguments);
    return error_of([&] { activation_dots(arguments); });
  };
  EXPECT_EQ(error([](auto&) {}), "no error");
  EXPECT_THAT(result, ElementsAre(4, 9100, 0, 20));
  EXPECT_THAT(error([](auto& a) { a.x.shape[0] = 2; }),
              HasSubstr("'x': expected shape [3, 2], got [2, 2]"));
  EXPECT_THAT(error([](auto& a) { a.activation = Activation::kSwiGlu; }),
              HasSubstr("'x': expected shape [3, 4], got [3, 2]"));
  EXPECT_THAT(error([](auto& a) { a.x.dtype = DType::kBFloat16; }),
              HasSubstr("'x': expected dtype float32, got bfloat16"));
  EXPECT_THAT(error([](auto& a) { a.dots.shape[1] = 1; }),
              HasSubstr("'dots': expected shape [2, 2], got [2, 1]"));
  EXPECT_THAT(error([](auto& a) { a.activation = static_cast<Activation>(99); }),
              HasSubstr("'activation'"));
  positions[2] = 3;
  EXPECT_EQ(error([](auto&) {}),
            "activation_dots: argument 'positions': expected numbers from -1 to 2, got 3 at "
            "[1, 0]");
}

}  // namespace
}  // namespace octofold
