// The fastest candidates measured on a GPU: planners take them before their own reckoning. Pure;
// cuda/tuning_file.h reads a user's table from disk, others come with the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plan/gpu.h"
#include "plan/product.h"
#include "plan/weight_only.h"

namespace octofold::plan {

/// How tables name a product of tensors as operations allocate them: "gemm: m 64, n 7168, k 2048, a
/// e4m3 1x128, …". Groups, a gated activation and the type that A is cast from stand behind. Rules
/// of casts do not: they make no difference to which kernel is the fastest.
std::string tuning_key(const GemmProblem& problem);
std::string tuning_key(const WeightOnlyProblem& problem);

class Tuning {
 public:
  Tuning() = default;

  /// From a table's text (docs/tuning.md). Throws Error: kBadFormat where it is none; kUnsupported
  /// where it is another GPU's, or another version's, whose candidates took other times.
  Tuning(std::string_view text, const Gpu& gpu, std::string_view gpu_name);

  /// The candidate's name; empty where the product was not measured, or its tensors do not lie
  /// as those did.
  std::string_view candidate(const GemmProblem& problem) const;
  std::string_view candidate(const WeightOnlyProblem& problem) const;

  std::size_t size() const;

 private:
  /// The candidate for products of so many rows.
  struct Choice {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::string candidate{};
  };
  std::string_view find(std::string_view key) const;

  /// By all of a product but its rows.
  std::map<std::string, std::vector<Choice>, std::less<>> choices_;
};

/// "NVIDIA_H200.json" of "NVIDIA H200".
std::string tuning_file_name(std::string_view gpu_name);

/// The GPUs that the library brings a table for.
inline constexpr std::string_view kTunedGpus[] = {"NVIDIA H200", "NVIDIA H100 80GB HBM3"};

/// The library's table for this GPU (src/plan/tables), measured on one of its kind. Empty for
/// others.
Tuning shipped_tuning(const Gpu& gpu, std::string_view gpu_name);

/// The text of the table of this file name; empty where there is none. Defined by a generated file:
/// cmake/embed_tables.cmake.
std::string_view shipped_table(std::string_view file_name);

}  // namespace octofold::plan
