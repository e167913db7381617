// Why no kernel of Hopper's can be built: a valid configuration, spoiled in one place.
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "support/product_plans.h"
#include "support/product_problems.h"

namespace octofold::plan {
namespace {

using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;
using config::Work;
using testing::HasSubstr;

// What is said of the configuration as it is spoiled.
class Spoiled {
 public:
  explicit Spoiled(const GemmProblem& problem, std::string_view candidate = {})
      : valid_(test::sm90_plan(problem, candidate).config) {}

  template <typename Spoil>
  std::string operator()(Spoil&& spoil) const {
    Sm90GemmConfig config = valid_;
    spoil(config);
    const char* found = config.invalid_reason();
    return found == nullptr ? "" : found;
  }

 private:
  Sm90GemmConfig valid_;
};

TEST(Sm90ConfigTest, OntoC) {
  GemmProblem problem{.product = {.m = 512, .n = 512, .k = 512}};
  problem.product.form.out = DType::kFloat32;
  problem.product.form.c = Addend::kOutputType;
  const Spoiled reason(problem, "128x128.w2.c1x1x1.b1.early.onto_c");
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_THAT(reason([](auto& c) { c.form.out = DType::kFloat16; }), HasSubstr("FP32"));
  EXPECT_THAT(reason([](auto& c) { c.form.c = Addend::kNone; }), HasSubstr("FP32"));
  EXPECT_THAT(reason([](auto& c) { c.adds_in_place = true; }), HasSubstr("without C-prefetch"));
  EXPECT_THAT(reason([](auto& c) { c.swapped = true; }), HasSubstr("straight operands"));
  EXPECT_THAT(reason([](auto& c) { c.split_k = 2; }), HasSubstr("no split-K"));
  EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }),
              HasSubstr("by a producer warp"));
  EXPECT_THAT(reason([](auto& c) { c.boxes = 1; }), HasSubstr("boxes"));
  EXPECT_THAT(reason([](auto& c) { c.boxes = 8; }), HasSubstr("shared memory"));
  EXPECT_THAT(reason([](auto& c) { c.store = OutputStore::kTma; }), HasSubstr("boxes"));
}

TEST(Sm90ConfigTest, Gated) {
  const Spoiled reason(test::gated_problem(256, 256, 256));
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_THAT(reason([](auto& c) { c.gated.activation = Activation::kSilu; }),
              HasSubstr("gate and up"));
  EXPECT_THAT(reason([](auto& c) { c.form.out = DType::kBFloat16; }), HasSubstr("FP8"));
  EXPECT_THAT(reason([](auto& c) { c.gated.exists = false; }), HasSubstr("D has to be"));
  EXPECT_THAT(reason([](auto& c) { c.form.b.scales = Granularity::kBlock1x128; }),
              HasSubstr("128x128"));
  EXPECT_THAT(reason([](auto& c) { c.form.bias = Addend::kFloat32; }), HasSubstr("no bias"));
  EXPECT_THAT(reason([](auto& c) { c.tile_columns = 64; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.tile_rows = 256; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.swapped = true; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.store = OutputStore::kDirect; }), HasSubstr("TMA"));
  EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }), HasSubstr("TMA"));
  EXPECT_THAT(reason([](auto& c) { ++c.stages; }), HasSubstr("shared memory"));
}

TEST(Sm90ConfigTest, Cast) {
  const Spoiled reason(test::cast_problem(16, 4096, 4096), "64x16.swapped.w1.c1x1x1.b2");
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_THAT(reason([](auto& c) { c.gated.exists = true; }), HasSubstr("gated"));
  EXPECT_THAT(reason([](auto& c) { c.dynamic.type = DType::kE4M3; }), HasSubstr("float32"));
  EXPECT_THAT(reason([](auto& c) { c.dynamic.type = DType::kInt32; }), HasSubstr("float32"));
  EXPECT_THAT(reason([](auto& c) { c.form.a.scales = Granularity::kTensor; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.swapped = false; }), HasSubstr("swapped operands"));
  EXPECT_THAT(reason([](auto& c) { c.cluster_columns = 2; }), HasSubstr("multicast"));
  EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }), HasSubstr("TMA"));
  EXPECT_THAT(reason([](auto& c) { c.blocks_per_multiprocessor = 4; }), HasSubstr("registers"));
  EXPECT_THAT(reason([](auto& c) { c.stages = 3; }), HasSubstr("as many stages"));
}

TEST(Sm90ConfigTest, Groups) {
  for (const Work work : {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth}) {
    const Spoiled reason(test::grouped_problem(work, 512, 512, 512, 1, 512));
    EXPECT_EQ(reason([](auto&) {}), "");
    EXPECT_THAT(reason([](auto& c) { c.split_k = 2; }), HasSubstr("split-K"));
    EXPECT_THAT(reason([](auto& c) { c.form.b_channel_scale = true; }), HasSubstr("two-level"));
    if (work != Work::kGroupedDepth) continue;
    EXPECT_THAT(reason([](auto& c) { c.form.bias = Addend::kFloat32; }), HasSubstr("no bias"));
    EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }), HasSubstr("TMA"));
  }
}

}  // namespace
}  // namespace octofold::plan
