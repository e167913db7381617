// Matrices on disk, a tile at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace octofold::model {

/// Data in memory at a time: large enough for all threads of quantize(), and 128 rows of 65536
/// floats, so that all but the widest matrices are read and written in one piece per tile.
inline constexpr std::int64_t kTileBytes = 32 << 20;

/// A rectangle of a row-major matrix.
struct Tile {
  std::int64_t row;
  std::int64_t col;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t matrix_cols;

  std::int64_t size() const { return rows * cols; }
};

/// Calls transfer(offset in the matrix in bytes, part of `buffer`) for the contiguous runs of a
/// tile whose rows lie end to end in `buffer`.
template <typename Byte, typename Transfer>
void for_each_run(const Tile& tile, std::span<Byte> buffer, Transfer transfer) {
  const std::int64_t element_bytes = static_cast<std::int64_t>(buffer.size()) / tile.size();
  const std::int64_t runs = tile.cols == tile.matrix_cols ? 1 : tile.rows;
  const std::size_t run_bytes = buffer.size() / runs;
  for (std::int64_t i = 0; i < runs; ++i) {
    transfer(((tile.row + i) * tile.matrix_cols + tile.col) * element_bytes,
             buffer.subspan(i * run_bytes, run_bytes));
  }
}

}  // namespace octofold::model
