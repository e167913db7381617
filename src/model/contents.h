// The contents of a checkpoint: its family, its weights in FP8, and the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "octofold/checkpoint.h"

#include "model/checkpoint_source.h"
#include "model/families/family.h"

namespace octofold::model {

/// Throws what inspect_checkpoint() throws.
CheckpointContents read_contents(const CheckpointSource& source);

/// How scales of this shape belong to codes of that one, if they are such as the family has: the
/// first of its granularities that they fit.
std::optional<Granularity> granularity_of(const Family& family, std::span<const std::int64_t> codes,
                                          std::span<const std::int64_t> scale);

/// Rows and columns of a matrix, or of each of a stack; and how many there are.
struct MatrixSizes {
  std::int64_t matrices;
  std::int64_t rows;
  std::int64_t cols;

  explicit MatrixSizes(std::span<const std::int64_t> shape)
      : matrices(shape.size() == 3 ? shape[0] : 1),
        rows(shape[shape.size() - 2]),
        cols(shape[shape.size() - 1]) {}
};

bool is_fp8(const CheckpointTensor& tensor);
/// True if it has a type that scales have.
bool is_scale(const CheckpointTensor& tensor);

}  // namespace octofold::model
