// The ways to cut a product on Hopper that the planner chooses among.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "kernels/sm90/config/checks.h"

namespace octofold::plan::sm90 {

/// The measured times of a tiling (gemm_tiling_costs.h).
struct TilingCost {
  /// One stage of K, with all loads arriving in time.
  int stage_nanoseconds = 0;
  /// A tile besides its stages, where others follow.
  int tile_nanoseconds = 0;
  /// A product with one tile to a block, besides its stages.
  int start_nanoseconds = 0;
};

/// The part of a Sm90GemmConfig that is chosen; the rest follows from the problem.
struct Tiling {
  bool swapped = false;
  int rows = 0, columns = 0;
  int consumer_warpgroups = 1;
  int cluster_rows = 1, cluster_columns = 1, split_k = 1;
  int blocks_per_multiprocessor = 1;
  config::ConsumerOrder order = config::ConsumerOrder::kFree;
  bool wait_ahead = false;

  TilingCost cost{};
};

/// "256x128.w2.c1x2x1.b1.early": the names of candidates, in tables of tuning too.
class TilingName {
 public:
  constexpr explicit TilingName(const Tiling& tiling) {
    *this << tiling.rows << "x" << tiling.columns << (tiling.swapped ? ".swapped" : "") << ".w"
          << tiling.consumer_warpgroups << ".c" << tiling.cluster_rows << "x"
          << tiling.cluster_columns << "x" << tiling.split_k << ".b"
          << tiling.blocks_per_multiprocessor;
    if (tiling.order != config::ConsumerOrder::kFree) *this << "." << config::word(tiling.order);
    if (tiling.wait_ahead) *this << ".early";
  }
  constexpr std::string_view text() const { return {text_.data(), size_}; }

 private:
  constexpr TilingName& operator<<(std::string_view part) {
    for (const char letter : part) text_[size_++] = letter;
    return *this;
  }
  constexpr TilingName& operator<<(int number) {
    if (number >= 10) *this << number / 10;
    text_[size_++] = static_cast<char>('0' + number % 10);
    return *this;
  }

  std::array<char, 64> text_{};
  std::size_t size_ = 0;
};

/// All of them. A kernel cannot be built from each of them for each form.
std::span<const Tiling> tilings();

/// The tilings of gated outputs: columns are H's.
std::span<const Tiling> gated_tilings();

}  // namespace octofold::plan::sm90
