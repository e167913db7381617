// The one text form of a product's problem: tables, recordings, the kernel cache and people name a
// product by it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "plan/product.h"
#include "plan/weight_only.h"

namespace octofold::plan {

/// "gemm: m 64, n 7168, k 2048, a e4m3 1x128, b e4m3 128x128, out bfloat16". Behind that stand
/// addends, groups, a gated activation, and where tensors do not lie as operations allocate them.
/// Rules of casts do not, nor that C is out: they make no difference to which kernels there are,
/// nor to which is the fastest.
std::string text_of(const GemmProblem& problem);
std::string text_of(const WeightOnlyProblem& problem);

/// The problem of a text. What is left out is as in the example (docs/tuning.md has all phrases);
/// tensors lie as operations allocate them unless the text says otherwise.
/// Throws Error(kInvalidArgument), which names the phrase, what is allowed and what came.
std::variant<GemmProblem, WeightOnlyProblem> parse_problem(std::string_view text);

/// The text with all that may be left out. Throws as parse_problem().
std::string complete(std::string_view text);

}  // namespace octofold::plan
