// Random problems for the GEMM planner.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <utility>

#include "kernels/shared/tile_schedule.h"
#include "plan/gemm.h"

namespace octofold::test {

template <typename T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

// Sizes of all magnitudes, ragged and round ones.
inline std::int64_t random_size(std::mt19937& random) {
  const int bits = std::uniform_int_distribution(0, 17)(random);
  const std::int64_t size = std::uniform_int_distribution<std::int64_t>(1, 1ll << bits)(random);
  return random() % 2 == 0 ? size : (size + 127) / 128 * 128;
}

inline plan::GemmProblem random_problem(std::mt19937& random) {
  const auto fp8 = [&] { return pick(random, {DType::kE4M3, DType::kE5M2}); };
  const auto granularity = [&] {
    return pick(random, {Granularity::kTensor, Granularity::kChannel, Granularity::kBlock1x128,
                         Granularity::kBlock128x128});
  };
  const auto addend = [&] {
    return pick(random, {Addend::kNone, Addend::kOutputType, Addend::kFloat32});
  };
  GemmForm form{.a = {fp8(), granularity()},
                .b = {fp8(), granularity()},
                .out = pick(random, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}),
                .c = addend(),
                .bias = addend()};
  form.fast_accumulation =
      !varies_along_k(form.a.scales) && !varies_along_k(form.b.scales) && random() % 2 == 0;
  form.b_channel_scale = form.b.scales == Granularity::kBlock128x128 && random() % 2 == 0;
  return {.product = {.m = random_size(random),
                      .n = random_size(random),
                      .k = random() % 20 == 0 ? 0 : random_size(random),
                      .form = form},
          .operands_fit_tma = random() % 4 != 0,
          .operands_fit_words = random() % 2 == 0,
          .output_fits_tma = random() % 4 != 0,
          .c_fits_tma = random() % 2 == 0};
}

// The tiles of clusters.
inline config::TileSchedule tiles_of(const config::Sm90GemmConfig& config,
                                     const plan::GemmProblem& problem) {
  auto rows = static_cast<int>(problem.product.m), columns = static_cast<int>(problem.product.n);
  if (config.swapped) std::swap(rows, columns);
  return config::tile_schedule(rows, columns, config.cluster_tile_rows(),
                               config.cluster_tile_columns(), config.raster_rows);
}

}  // namespace octofold::test
