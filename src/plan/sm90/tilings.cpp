#include "plan/sm90/tilings.h"

namespace octofold::plan::sm90 {
namespace {

using enum config::MathOrder;

// The planner takes the first of those that predict the same. In the columns: swapped; rows and
// columns of a tile; math warpgroups; cluster's rows, columns, depth; blocks to a multiprocessor;
// order, early wait; ns of a stage, of a tile besides, and of the first one's way.
constexpr Tiling kTilings[] = {
    // Rows of A and of B: for 30 rows and more.
    {false, 256, 128, 2, 1, 2, 1, 1, kFree, true, 698, 1597, 4386},
    {false, 256, 128, 2, 1, 1, 1, 1, kFree, true, 625, 1891, 4236},
    {false, 256, 128, 2, 1, 1, 1, 1, kFree, false, 645, 1659, 3714},
    {false, 256, 128, 2, 1, 2, 1, 1, kOrdered, false, 749, 1122, 3566},
    {false, 128, 192, 2, 2, 1, 1, 1, kFree, true, 496, 1154, 3799},
    {false, 128, 192, 2, 2, 1, 1, 1, kOrdered, false, 523, 724, 3301},
    {false, 192, 128, 3, 1, 2, 1, 1, kOrdered, false, 506, 763, 3392},
    {false, 192, 128, 3, 1, 1, 1, 1, kOrdered, false, 448, 876, 3185},
    {false, 192, 128, 3, 1, 1, 2, 1, kFree, false, 512, 0, 4836},
    {false, 192, 96, 3, 1, 1, 1, 1, kOrdered, false, 339, 719, 3068},
    {false, 192, 64, 3, 1, 1, 1, 1, kFree, true, 205, 589, 3209},
    {false, 192, 64, 3, 1, 1, 2, 1, kFree, true, 280, 0, 3846},
    {false, 128, 160, 2, 1, 1, 1, 1, kFree, true, 361, 811, 3318},
    {false, 128, 128, 2, 1, 2, 1, 1, kFree, true, 344, 668, 3591},
    {false, 128, 128, 2, 2, 1, 1, 1, kFree, true, 339, 684, 3498},
    {false, 128, 128, 2, 1, 1, 1, 1, kFree, true, 266, 836, 3353},
    {false, 128, 128, 2, 1, 1, 2, 1, kFree, true, 328, 0, 4188},
    {false, 128, 128, 2, 1, 1, 1, 1, kOrdered, false, 335, 599, 2848},
    {false, 128, 128, 2, 2, 1, 1, 1, kOrdered, false, 366, 568, 3256},
    {false, 128, 96, 2, 1, 1, 1, 1, kAlternating, false, 251, 704, 3030},
    {false, 128, 96, 2, 1, 1, 1, 1, kFree, true, 189, 728, 3196},
    {false, 128, 96, 2, 1, 1, 1, 1, kOrdered, false, 235, 666, 2953},
    {false, 128, 96, 2, 1, 1, 2, 1, kAlternating, false, 269, 0, 3786},
    {false, 128, 64, 2, 1, 1, 1, 1, kFree, true, 141, 621, 2958},
    {false, 128, 64, 2, 1, 1, 2, 1, kFree, true, 167, 0, 3501},
    {false, 64, 64, 1, 1, 1, 1, 1, kAlternating, false, 125, 17, 2537},
    {false, 64, 64, 1, 1, 1, 2, 1, kAlternating, false, 143, 0, 2849},
    {false, 64, 64, 1, 1, 1, 1, 2, kAlternating, false, 125, 17, 3186},
    {false, 64, 64, 1, 1, 1, 2, 2, kAlternating, false, 151, 0, 3265},
    // The same where sums alone take registers: without promotion, or without scales along K.
    {false, 128, 176, 2, 1, 1, 1, 1, kFree, false, 441, 801, 2928},
    {false, 128, 256, 2, 2, 1, 1, 1, kFree, false, 707, 856, 3568},
    {false, 128, 256, 2, 1, 1, 1, 1, kFree, false, 618, 2152, 3003},
    // 64 rows of B and few of A. Which of them is best is a question of how many such tiles fill
    // the multiprocessors once: slices of K, and blocks to a multiprocessor.
    {true, 64, 8, 1, 1, 1, 1, 1, kFree, false, 104, 468, 2090},
    {true, 64, 8, 1, 1, 1, 1, 2, kFree, false, 99, 468, 2451},
    {true, 64, 8, 1, 1, 1, 1, 3, kFree, false, 94, 468, 2406},
    {true, 64, 8, 1, 1, 1, 1, 4, kFree, false, 99, 468, 2839},
    {true, 64, 8, 1, 1, 1, 2, 1, kFree, false, 118, 0, 2462},
    {true, 64, 8, 1, 1, 1, 2, 2, kFree, false, 118, 0, 2549},
    {true, 64, 8, 1, 1, 1, 2, 3, kFree, false, 118, 0, 2634},
    {true, 64, 8, 1, 1, 1, 4, 3, kFree, false, 118, 0, 3184},
    {true, 64, 16, 1, 1, 1, 1, 1, kFree, false, 111, 437, 2251},
    {true, 64, 16, 1, 1, 1, 1, 2, kFree, false, 111, 437, 2331},
    {true, 64, 16, 1, 1, 1, 1, 3, kFree, false, 111, 437, 2444},
    {true, 64, 16, 1, 1, 1, 1, 4, kFree, false, 111, 437, 2520},
    {true, 64, 16, 1, 1, 1, 2, 1, kFree, false, 125, 0, 2383},
    {true, 64, 16, 1, 1, 1, 2, 2, kFree, false, 125, 0, 2495},
    {true, 64, 16, 1, 1, 1, 2, 3, kFree, false, 125, 0, 2565},
    {true, 64, 16, 1, 1, 1, 4, 3, kFree, false, 125, 0, 3194},
    {true, 64, 32, 1, 1, 1, 1, 2, kAlternating, false, 151, 85, 2488},
    {true, 64, 32, 1, 1, 1, 1, 3, kFree, false, 170, 13, 2374},
    {true, 64, 32, 1, 1, 1, 1, 4, kFree, false, 170, 13, 2701},
    {true, 64, 32, 1, 1, 1, 2, 1, kAlternating, false, 143, 0, 2716},
    {true, 64, 32, 1, 1, 1, 2, 2, kAlternating, false, 143, 0, 2803},
    {true, 64, 32, 1, 1, 1, 3, 1, kAlternating, false, 143, 0, 2866},
    {true, 64, 48, 1, 1, 1, 1, 2, kAlternating, false, 168, 10, 2699},
    {true, 64, 48, 1, 1, 1, 1, 3, kFree, false, 191, 5, 2687},
    {true, 64, 48, 1, 1, 1, 2, 1, kAlternating, false, 171, 0, 2756},
    {true, 64, 48, 1, 1, 1, 2, 2, kAlternating, false, 171, 0, 3024},
    {true, 64, 48, 1, 1, 1, 3, 1, kAlternating, false, 171, 0, 2884},
    {true, 64, 64, 1, 1, 1, 1, 2, kAlternating, false, 182, 7, 2918},
    {true, 64, 64, 1, 1, 1, 1, 3, kFree, false, 207, 6, 2828},
    {true, 64, 64, 1, 1, 1, 3, 3, kFree, false, 237, 0, 3642},
};

// A stage is that of 256×128 with as many columns of B: the same times, nearly. A tile takes the
// activation besides. Fitted to five shapes of 512 to 16384 rows (docs/performance.md, "Gated
// products"), within 4 %: by these the cluster is for 1024 rows and more, a block by itself for
// fewer, but where the waves of one are filled better.
constexpr Tiling kGatedTilings[] = {
    {false, 128, 128, 2, 2, 1, 1, 1, kFree, true, 699, 2600, 2240},
    {false, 128, 128, 2, 1, 1, 1, 1, kFree, true, 645, 2860, 2130},
};

}  // namespace

std::span<const Tiling> tilings() { return kTilings; }
std::span<const Tiling> gated_tilings() { return kGatedTilings; }

}  // namespace octofold::plan::sm90
