// Products on a GPU of which nobody reads the memory, as the checks leave them: for tests of what
// reaches the GPU.
#pragma once

#include <cstdint>

#include "octofold/cast_targets.h"
#include "octofold/scale_layout.h"

#include "core/product.h"

namespace octofold::test {

inline constexpr octofold::Device kGpu{DeviceType::kCuda, 0};
inline constexpr int kGroups = 4;

inline void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

inline const std::int32_t* const kNumbers = static_cast<const std::int32_t*>(address(0x9000));

// Rows lie `padding` elements apart.
inline MutableTensorView matrix_at(std::uintptr_t place, DType dtype, std::int64_t rows,
                                   std::int64_t cols, std::int64_t padding = 0) {
  return matrix(address(place), dtype, rows, cols, cols + padding, kGpu);
}
inline MutableTensorView vector_at(std::uintptr_t place, DType dtype, std::int64_t size) {
  return vector(address(place), dtype, size, kGpu);
}

// The addresses of the matrices. Scales lie kToScale behind their codes.
inline constexpr std::uintptr_t kA = 0x10000000, kB = 0x30000000, kOut = 0x60000000,
                                kC = 0x70000000, kBias = 0x80000000, kToScale = 0x1000000;

// `scaled_rows`: those whose scales are there.
inline CastTarget operand(DType type, Granularity granularity, std::int64_t rows,
                          std::int64_t scaled_rows, std::int64_t cols, std::uintptr_t data) {
  return {matrix_at(data, type, rows, cols),
          scale_layout(granularity, scaled_rows, cols, DeviceType::kCuda)
              .view(address(data + kToScale), kGpu),
          {type, granularity}};
}

// Block scales, an e5m2 B, BF16 out.
inline core::Product product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.a = operand(DType::kE4M3, Granularity::kBlock1x128, m, m, k, kA),
          .b = operand(DType::kE5M2, Granularity::kBlock128x128, n, n, k, kB),
          .out = matrix(address(kOut), DType::kBFloat16, m, n, n, kGpu)};
}

// A comes in BF16.
inline core::Product cast_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  core::Product product = test::product(m, n, k);
  product.a = {matrix<const void>(address(kA), DType::kBFloat16, m, k, k, kGpu),
               {},
               Granularity::kBlock1x128};
  product.cast_a = config::CastFormat{};
  return product;
}

// n: columns of H, of the gates and of the ups.
inline core::Product gated_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  core::Product product = test::product(m, 2 * n, k);
  const auto out = operand(DType::kE4M3, Granularity::kBlock1x128, m, m, n, kOut);
  product.out = out.data;
  product.gated = core::GatedEpilogue{.scale = out.scale};
  return product;
}

// m: rows of all groups (kGroupedRows), or of each. n: b's rows of a group. k: of all groups.
inline core::Product grouped_product(config::Work work, std::int64_t m, std::int64_t n,
                                     std::int64_t k) {
  const bool in_depth = work == config::Work::kGroupedDepth;
  const std::int64_t out_rows = work == config::Work::kGroupedRows ? m : kGroups * m;
  const std::int64_t a_rows = in_depth ? m : out_rows;
  const Granularity of_b = in_depth ? Granularity::kBlock1x128 : Granularity::kBlock128x128;
  return {.a = operand(DType::kE4M3, Granularity::kBlock1x128, a_rows, a_rows, k, kA),
          .b = operand(DType::kE4M3, of_b, in_depth ? n : kGroups * n, n, k, kB),
          .out = matrix(address(kOut), DType::kBFloat16, out_rows, n, n, kGpu),
          .groups = {.work = work,
                     .count = kGroups,
                     .numbers = kNumbers,
                     .scale_stride = in_depth ? 0 : (n + 127) / 128 * ((k + 127) / 128),
                     .expected_rows = in_depth ? k / kGroups : out_rows / kGroups,
                     .max_rows = in_depth ? k : m}};
}

inline core::Product grouped_gated_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  core::Product product = grouped_product(config::Work::kGroupedRows, m, 2 * n, k);
  const core::Product dense = gated_product(m, n, k);
  product.out = dense.out;
  product.gated = dense.gated;
  return product;
}

}  // namespace octofold::test
