// From a cast to the kernels that carry it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/convert.h"
#include "plan/cast.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// Throws Error(kUnsupported) that names the operation, for a matrix of too many blocks of threads.
void require_launchable(std::string_view operation, std::int64_t blocks, std::int64_t rows,
                        std::int64_t cols);

/// All that a plan depends on. Alignment enters as yes or no, so that casts that differ in
/// addresses only share a plan.
struct CastProblem {
  std::int64_t rows = 0;  ///< of what is cast
  std::int64_t cols = 0;
  config::CastFormat format{};
  config::CastSource source{};
  bool to_rows = true;  ///< what is written: the cast, that of the transpose, or both
  bool to_transposed = false;
  /// Beside rows of 1x128: the transpose has one scale for each of its rows.
  bool transposed_by_channel = false;
  /// Beside rows of 1x128: the transpose has scales of 128x128.
  bool transposed_by_squares = false;
  bool scales_given = false;
  /// Largest magnitudes are: those of the transpose, and of rows unless they are of 1x128.
  bool amax_given = false;
  config::ColumnReductions columns{};  ///< what else is worked out
  /// How many groups of rows the transpose has in the layout of kernels/shared/group_bounds.h; 0:
  /// it is one matrix.
  std::int64_t groups = 0;
  GroupLayout group_layout = GroupLayout::kSpaced;
  /// The number of matrices, one below another, in the rows (CastTargets::matrices); at least 1.
  std::int64_t matrices = 1;
  /// True if matrices without rows to be multiplied are left alone (CastTargets::used).
  bool skips_unused = false;
  /// True if it stands for many casts by one launch (plan_cast_batch).
  bool batched = false;
  /// True if address and row stride of x, and those of all codes, are multiples of 16 and 8 bytes.
  bool x_is_aligned = true;
  bool codes_are_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("rows", rows);
    field("cols", cols);
    field("format", format);
    field("source", source);
    field("to_rows", to_rows);
    field("to_transposed", to_transposed);
    field("transposed_by_channel", transposed_by_channel);
    field("transposed_by_squares", transposed_by_squares);
    field("scales_given", scales_given);
    if (amax_given) field("amax_given", amax_given);
    field("columns", columns);
    if (groups > 0) field("groups", groups);
    if (groups > 0) field("group_layout", group_layout);
    if (matrices > 1) field("matrices", matrices);
    if (skips_unused) field("skips_unused", skips_unused);
    if (batched) field("batched", batched);
    field("x_is_aligned", x_is_aligned);
    field("codes_are_aligned", codes_are_aligned);
  }
  friend bool operator==(const CastProblem&, const CastProblem&) = default;

  std::int64_t rows_of_matrix() const { return rows / matrices; }
  /// True if a tile has all rows of its columns: what it finds of a column is the column's.
  bool has_whole_columns() const { return rows >= 1 && rows <= config::kReducedRows; }
};

using CastConfig =
    std::variant<config::TileCastConfig, config::RowCastConfig, config::WideRowCastConfig,
                 config::ScaleStepConfig, config::ColumnReductionConfig>;

struct CastLaunch {
  CastConfig config;
  std::int64_t blocks = 0;  ///< of threads; of wide rows, at most
};

/// No parameter depends on a cast's configurations.
struct NoConfig {};
using CastPlan = Plan<NoConfig>;

/// The kernels of a cast, at most five, to be launched one after another. None for a matrix without
/// units. Throws Error(kUnsupported) for a GPU without FP8 conversions and for 2^31 and more tiles.
std::vector<CastLaunch> cast_launches(const CastProblem& problem, const Gpu& gpu);
CastPlan plan_cast(const CastProblem& problem, const Gpu& gpu);

/// The same of an activation or its gradient that is written in numbers of the type of what it is
/// of, to neither target of a cast.
CastPlan plan_values(const CastProblem& problem, const Gpu& gpu);

/// An element-wise conversion, or a dequantization (`scaled`).
struct ConvertProblem {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType in = DType::kE4M3;
  DType out = DType::kBFloat16;
  bool scaled = false;
  Granularity granularity = Granularity::kTensor;
  bool saturate = true;
  /// True if addresses and row strides are multiples of ConvertConfig::vector().
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("rows", rows);
    field("cols", cols);
    field("in", in);
    field("out", out);
    field("scaled", scaled);
    field("granularity", granularity);
    field("saturate", saturate);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const ConvertProblem&, const ConvertProblem&) = default;
};

using ConvertPlan = Plan<config::ConvertConfig>;

/// One kernel, or none where there is nothing to do. Throws as plan_cast does.
ConvertPlan plan_convert(const ConvertProblem& problem, const Gpu& gpu);

// Casts of many matrices, or stacks of them, by one launch of each kernel that a cast of one takes.

/// The kind of a cast, on which its kernels depend: casts of the same kind can share a launch.
/// Nothing for a cast that takes kernels of its own: of a source that is worked out, of groups,
/// with two-level scales, reductions of columns or an amax that is given.
std::optional<CastProblem> batch_kind(const CastProblem& problem);

struct CastBatchConfig {
  std::vector<CastConfig> kernels;  ///< one after another
};
using CastBatchPlan = Plan<CastBatchConfig>;

/// Plans a batch of one kind. Blocks are counted by batch_blocks(). Throws as plan_cast() does.
CastBatchPlan plan_cast_batch(const CastProblem& kind, const Gpu& gpu);

/// The blocks of threads that a kernel of the plan has for one of the casts.
std::int64_t batch_blocks(const CastConfig& kernel, const CastProblem& problem);

}  // namespace octofold::plan
