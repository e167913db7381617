// A row of an attention by products of warpgroups has the same bits in any batch: kernels that sum
// keys in parts, run on the host.
#define __shared__ static
#include "support/attention_invariance_on_host.h"  // first: it has CUDA's types
//
#include "kernels/attention/warpgroup_latent.h"
#include "kernels/attention/warpgroup_queries.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::AttentionForm;
using config::KeyLayout;
using config::WarpgroupLatentConfig;
using config::WarpgroupQueriesConfig;
using test::AttentionCase;
using test::ScaleKind;
using enum DType;

// By two blocks, which stay.
struct ByWarpgroups {
  template <auto kConfig>
  static constexpr auto run = [](auto& attention, const config::AttentionParams& params) {
    attention.template run<kConfig>(params, 2, [&] {
      if constexpr (kConfig.form.shared_latent) {
        warpgroup_latent_kernel<kConfig>(params);
      } else {
        warpgroup_queries_kernel<kConfig>(params);
      }
    });
  };
};

TEST(HopperAttentionPartsTest, CausalOfDenseKeys) {
  constexpr AttentionForm kForm{.q = kBFloat16, .head_size = 64, .part_keys = 96};
  test::expect_batch_invariant<WarpgroupQueriesConfig{
                                   .form = kForm, .warpgroups = 2, .keys = 48, .stages = 4},
                               ByWarpgroups>({.heads = 2, .key_heads = 1, .window_right = 0}, 80,
                                             215);
}

TEST(HopperAttentionPartsTest, OfFp8ScoresInAWindowOfPages) {
  constexpr AttentionForm kForm{.head_size = 64,
                                .layout = KeyLayout::kPaged,
                                .k_scales = true,
                                .v_scales = true,
                                .part_keys = 64};
  test::expect_batch_invariant<
      WarpgroupQueriesConfig{
          .form = kForm, .warpgroups = 2, .keys = 32, .stages = 4, .fp8_scores = true},
      ByWarpgroups>({.heads = 2,
                     .key_heads = 1,
                     .window_left = 40,
                     .window_right = 0,
                     .k_scale = ScaleKind::kKeys,
                     .v_scale = ScaleKind::kKeys,
                     .fp8_scores = true},
                    80, 215);
}

TEST(HopperAttentionPartsTest, OfALatentInPages) {
  constexpr AttentionForm kForm{.head_size = 192,
                                .value_size = 128,
                                .shared_latent = true,
                                .layout = KeyLayout::kPaged,
                                .k_scales = true,
                                .v_scales = true,
                                .part_keys = 128};
  test::expect_batch_invariant<WarpgroupLatentConfig{.form = kForm}, ByWarpgroups>(
      {.heads = 4,
       .key_heads = 1,
       .window_left = 70,
       .window_right = 0,
       .k_scale = ScaleKind::kKeys,
       .v_scale = ScaleKind::kKeys,
       .scale = 0.05f},
      20, 315);
}

}  // namespace
}  // namespace octofold
