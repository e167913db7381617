// Attention on the CPU: every layout of keys against a plain softmax in FP64.
#include "octofold/octofold.h"

#include "support/attention_on_cpu.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Attention;
using test::Layout;
using test::Problem;
using test::Scales;

TEST(Attention, EveryLayoutAndScale) {
  for (const Layout layout : {Layout::kDense, Layout::kPacked, Layout::kPaged}) {
    for (const Scales scales : {Scales::kNone, Scales::kTensor, Scales::kHeads, Scales::kBlocks}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(layout)) + ", scales " +
                   std::to_string(static_cast<int>(scales)));
      Problem problem{.layout = layout, .query_offsets = layout == Layout::kPacked};
      problem.k_scales = scales;
      Attention(problem).run_and_compare();
      problem.k_scales = Scales::kHeads;
      problem.v_scales = scales;
      Attention(problem).run_and_compare();
    }
  }
}

TEST(Attention, SequencesOfManySizes) {
  for (const Layout layout : {Layout::kDense, Layout::kPacked, Layout::kPaged}) {
    SCOPED_TRACE(static_cast<int>(layout));
    Attention({.layout = layout,
               .query_offsets = true,
               .sequences = {{1, 300}, {0, 5}, {40, 40}, {7, 0}, {2, 1}},
               .heads = 2,
               .kv_heads = 2,
               .head_size = 8,
               .k_scales = Scales::kBlocks,
               .v_scales = Scales::kBlocks,
               .window_right = 0})
        .run_and_compare();
  }
}

TEST(Attention, Windows) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{20}, kFar}) {
    for (const std::int64_t right : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{3}, kFar}) {
      SCOPED_TRACE(std::to_string(left) + ", " + std::to_string(right));
      Attention({.sequences = {{35, 150}},
                 .heads = 1,
                 .kv_heads = 1,
                 .head_size = 8,
                 .v_scales = Scales::kBlocks,
                 .window_left = left,
                 .window_right = right})
          .run_and_compare();
    }
  }
}

TEST(Attention, OtherTypesAndScale) {
  Attention({.heads = 6,
             .kv_heads = 1,
             .head_size = 256,
             .q_type = DType::kBFloat16,
             .k_type = DType::kE5M2,
             .v_type = DType::kE4M3,
             .scale = -0.03f})
      .run_and_compare();
}

TEST(Attention, ValuesOfAnotherSize) {
  for (const Layout layout : {Layout::kDense, Layout::kPacked, Layout::kPaged}) {
    for (const auto& [head_size, value_size] : {std::pair{24, 16}, {16, 40}, {576, 512}}) {
      SCOPED_TRACE(value_size);
      Attention({.layout = layout,
                 .query_offsets = layout == Layout::kPacked,
                 .head_size = head_size,
                 .value_size = value_size,
                 .v_scales = Scales::kBlocks})
          .run_and_compare();
    }
  }
}

// Values are numbers of the keys.
TEST(Attention, OfALatent) {
  const Problem problem{.head_size = 24, .value_size = 16, .v_type = DType::kE4M3};
  Attention apart(problem), shared(problem);
  shared.arguments.v.data = shared.arguments.k.data;
  shared.arguments.v.data.shape[3] = 16;
  apart.copy_keys_to_values();
  octofold::attention(apart.arguments);
  octofold::attention(shared.arguments);
  for (int d = 0; d < 16; ++d) EXPECT_EQ(shared.out_at(4, 3, d), apart.out_at(4, 3, d));
}

// Heads of one chain of sums, and of several.
TEST(Attention, Fp8ScoresAreThoseOfCodes) {
  for (const std::int64_t head_size : {24, 128, 136, 512}) {
    for (const DType q_type : {DType::kFloat16, DType::kBFloat16}) {
      for (const DType k_type : {DType::kE4M3, DType::kE5M2}) {
        SCOPED_TRACE(head_size);
        Attention({.head_size = head_size,
                   .k_scales = Scales::kBlocks,
                   .q_type = q_type,
                   .k_type = k_type,
                   .scale = -0.05f,
                   .window_right = 0,
                   .compute = AttentionCompute::kFp8})
            .run_and_compare();
      }
    }
  }
}

TEST(Attention, Fp8ScoresOfQueriesThatHaveNoScaleOfTheirOwn) {
  Attention attention({.sequences = {{4, 50}},
                       .heads = 1,
                       .kv_heads = 1,
                       .head_size = 8,
                       .q_type = DType::kBFloat16,
                       .compute = AttentionCompute::kFp8});
  for (std::int64_t d = 0; d < 8; ++d) {
    attention.query_at(0, 0, d) = 0;
    attention.query_at(1, 0, d) = 1;  // the smallest subnormal number
  }
  EXPECT_NO_FATAL_FAILURE(attention.run_and_compare());
  attention.query_at(2, 0, 3) = 0x7FC0;  // NaN
  attention.query_at(3, 0, 3) = 0xFF80;  // -infinity
  octofold::attention(attention.arguments);
  for (std::int64_t query = 0; query < 4; ++query) {
    EXPECT_EQ(std::isnan(attention.out_at(query, 0, 5)), query >= 2) << query;
    EXPECT_EQ(std::isnan(attention.sum_at(query, 0)), query >= 2) << query;
  }
}

TEST(Attention, QueriesBehindTheLastOffsetStayAsTheyAre) {
  Attention attention({.layout = Layout::kPacked, .query_offsets = true});
  std::vector<std::int32_t> offsets{0, 3, 5};
  attention.arguments.query_offsets = vector(offsets.data(), DType::kInt32, 3);
  octofold::attention(attention.arguments);
  EXPECT_TRUE(std::isnan(attention.sum_at(5, 0)));
  EXPECT_TRUE(std::isnan(attention.out_at(5, 0, 0)));
  EXPECT_FALSE(std::isnan(attention.sum_at(4, 3)));
}

}  // namespace
}  // namespace octofold
