// The fastest candidates measured on a GPU: planners take them before their own reckoning. Pure;
// cuda/tuning_file.h reads a user's table from disk, others come with the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octofold/tuning.h"

#include "plan/gpu.h"
#include "plan/product.h"
#include "plan/weight_only.h"

namespace octofold::plan {

class Tuning {
 public:
  Tuning() = default;

  /// From a table's text (docs/tuning.md). Throws Error: kBadFormat where it is none, as
  /// parse_problem() for what is no problem; kUnsupported where it is another GPU's, or another
  /// version's, whose candidates took other times.
  Tuning(std::string_view text, const Gpu& gpu, std::string_view gpu_name);

  /// The candidate's name; empty where the product was not measured, or its tensors do not lie
  /// as those did.
  std::string_view candidate(const GemmProblem& problem) const;
  std::string_view candidate(const WeightOnlyProblem& problem) const;

  /// The same by a complete problem's text.
  std::string_view candidate(std::string problem) const { return find(std::move(problem)); }

  /// The text by which tables have a product; empty where its tensors do not lie as those of
  /// tables do.
  static std::string text_of(const GemmProblem& problem);
  static std::string text_of(const WeightOnlyProblem& problem);

  std::size_t size() const;

 private:
  /// The candidate for products of so many rows.
  struct Choice {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::string candidate{};
  };
  std::string_view find(std::string text) const;

  /// By the problem's text without its rows.
  std::map<std::string, std::vector<Choice>, std::less<>> choices_;
};

/// The text of a table with these choices in place of what it has for the same products; an empty
/// `text`: of a new table for this GPU.
std::string with_choices(std::string_view text, const Gpu& gpu, std::string_view gpu_name,
                         std::span<const MeasuredChoice> choices);

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
