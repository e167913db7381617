// Which candidates were the fastest on a GPU: what planners take before their own reckoning. Pure;
// cuda/tuning_file.h reads it from disk.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "plan/gemm.h"
#include "plan/gpu.h"

namespace octofold::plan {

/// How tables name a product of contiguous tensors: "gemm: m 64, n 7168, k 2048, a e4m3 1x128, …".
std::string tuning_key(const octofold::GemmProblem& product);

class Tuning {
 public:
  Tuning() = default;

  /// From a table's text (docs/tuning.md). Throws Error: kBadFormat where it is none; kUnsupported
  /// where it is another GPU's, or another version's, whose candidates took other times.
  Tuning(std::string_view text, const Gpu& gpu, std::string_view gpu_name);

  /// The candidate's name; empty where the product was not measured, or its tensors are not
  /// contiguous as those were.
  std::string_view candidate(const GemmProblem& problem) const;

  std::size_t size() const { return candidates_.size(); }

 private:
  std::map<std::string, std::string, std::less<>> candidates_;
};

}  // namespace octofold::plan
