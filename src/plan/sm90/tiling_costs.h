// The costs of the tilings of tilings.cpp, by the names of their candidates. Each has nanoseconds
// of a stage, of a tile besides, and of the start (tilings.h, TilingCost).
//
// They are fitted to times on an H200 with block scales and BF16 output, by
// scripts/fit_gemm_costs.py, which prints them in this form.
#pragma once

#include <string_view>

#include "plan/sm90/tilings.h"

namespace octofold::plan::sm90 {

struct NamedCost {
  std::string_view name;
  TilingCost cost;
};

inline constexpr NamedCost kTilingCosts[] = {
    {"256x128.w2.c1x2x1.b1.early", {688, 1597, 4386}},
    {"256x128.w2.c1x1x1.b1.early", {625, 1891, 4236}},
    {"256x128.w2.c1x1x1.b1", {645, 1659, 3714}},
    {"256x128.w2.c1x2x1.b1.ordered", {749, 1122, 3566}},
    {"128x192.w2.c2x1x1.b1.early", {496, 1154, 3799}},
    {"128x192.w2.c2x1x1.b1.ordered", {523, 724, 3301}},
    {"192x128.w3.c1x2x1.b1.ordered", {506, 763, 3392}},
    {"192x128.w3.c1x1x1.b1.ordered", {448, 876, 3185}},
    {"192x128.w3.c1x1x2.b1", {512, 0, 4836}},
    {"192x96.w3.c1x1x1.b1.ordered", {339, 719, 3068}},
    {"192x64.w3.c1x1x1.b1.early", {205, 589, 3209}},
    {"192x64.w3.c1x1x2.b1.early", {280, 0, 3846}},
    {"128x160.w2.c1x1x1.b1.early", {361, 811, 3318}},
    {"128x128.w2.c1x2x1.b1.early", {344, 668, 3591}},
    {"128x128.w2.c2x1x1.b1.early", {339, 684, 3498}},
    {"128x128.w2.c1x1x1.b1.early", {266, 836, 3353}},
    {"128x128.w2.c1x1x2.b1.early", {328, 0, 4188}},
    {"128x128.w2.c1x1x1.b1.ordered", {335, 599, 2848}},
    {"128x128.w2.c2x1x1.b1.ordered", {366, 568, 3256}},
    {"128x96.w2.c1x1x1.b1.alternating", {251, 704, 3030}},
    {"128x96.w2.c1x1x1.b1.early", {189, 728, 3196}},
    {"128x96.w2.c1x1x1.b1.ordered", {235, 666, 2953}},
    {"128x96.w2.c1x1x2.b1.alternating", {269, 0, 3786}},
    {"128x64.w2.c1x1x1.b1.early", {141, 621, 2958}},
    {"128x64.w2.c1x1x2.b1.early", {167, 0, 3501}},
    {"64x64.w1.c1x1x1.b1.alternating", {125, 17, 2537}},
    {"64x64.w1.c1x1x2.b1.alternating", {143, 0, 2849}},
    {"64x64.w1.c1x1x1.b2.alternating", {125, 17, 3186}},
    {"64x64.w1.c1x1x2.b2.alternating", {151, 0, 3265}},
    {"128x176.w2.c1x1x1.b1", {441, 801, 2928}},
    {"128x256.w2.c2x1x1.b1", {707, 856, 3568}},
    {"128x256.w2.c1x1x1.b1", {618, 2152, 3003}},
    {"64x8.swapped.w1.c1x1x1.b1", {100, 435, 2167}},
    {"64x8.swapped.w1.c1x1x1.b2", {100, 435, 2261}},
    {"64x8.swapped.w1.c1x1x1.b3", {100, 435, 2384}},
    {"64x8.swapped.w1.c1x1x1.b4", {100, 435, 2597}},
    {"64x8.swapped.w1.c1x1x2.b1", {94, 0, 2545}},
    {"64x8.swapped.w1.c1x1x2.b2", {94, 0, 2685}},
    {"64x8.swapped.w1.c1x1x2.b3", {94, 0, 2767}},
    {"64x8.swapped.w1.c1x1x4.b3", {94, 0, 2758}},
    {"64x16.swapped.w1.c1x1x1.b1", {109, 495, 2215}},
    {"64x16.swapped.w1.c1x1x1.b2", {109, 495, 2373}},
    {"64x16.swapped.w1.c1x1x1.b3", {109, 495, 2437}},
    {"64x16.swapped.w1.c1x1x1.b4", {109, 495, 2830}},
    {"64x16.swapped.w1.c1x1x2.b1", {101, 0, 2531}},
    {"64x16.swapped.w1.c1x1x2.b2", {101, 0, 2622}},
    {"64x16.swapped.w1.c1x1x2.b3", {101, 0, 2723}},
    {"64x16.swapped.w1.c1x1x4.b3", {101, 0, 2842}},
    {"64x32.swapped.w1.c1x1x1.b2.alternating", {144, 1157, 2594}},
    {"64x32.swapped.w1.c1x1x1.b3", {183, 970, 2321}},
    {"64x32.swapped.w1.c1x1x1.b4", {183, 970, 2807}},
    {"64x32.swapped.w1.c1x1x2.b1.alternating", {132, 0, 2791}},
    {"64x32.swapped.w1.c1x1x2.b2.alternating", {132, 0, 2955}},
    {"64x32.swapped.w1.c1x1x3.b1.alternating", {132, 0, 3037}},
    {"64x48.swapped.w1.c1x1x1.b2.alternating", {168, 10, 2699}},
    {"64x48.swapped.w1.c1x1x1.b3", {191, 5, 2687}},
    {"64x48.swapped.w1.c1x1x2.b1.alternating", {171, 0, 2756}},
    {"64x48.swapped.w1.c1x1x2.b2.alternating", {171, 0, 3024}},
    {"64x48.swapped.w1.c1x1x3.b1.alternating", {171, 0, 2884}},
    {"64x64.swapped.w1.c1x1x1.b2.alternating", {182, 7, 2918}},
    {"64x64.swapped.w1.c1x1x1.b3", {207, 6, 2828}},
    {"64x64.swapped.w1.c1x1x3.b3", {237, 0, 3642}},
};

// A stage is that of 256×128 with as many columns of B: the same times, nearly. A tile takes the
// activation besides. Fitted to five shapes of 512 to 16384 rows (docs/notes/products.md, "Gated
// products"), within 4 %: by these the cluster is for 1024 rows and more, a block by itself for
// fewer, but where the waves of one are filled better.
inline constexpr NamedCost kGatedTilingCosts[] = {
    {"128x128.w2.c2x1x1.b1.early", {699, 2600, 2240}},
    {"128x128.w2.c1x1x1.b1.early", {645, 2860, 2130}},
};

}  // namespace octofold::plan::sm90
