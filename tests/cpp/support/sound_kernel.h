// A GEMM kernel, compiled: no register leaves the register file, and FP8 tensor cores do the work.
#pragma once

#include <gtest/gtest.h>
#include <string>

#include "cuda/kernel_headers.h"
#include "jit/nvrtc.h"
#include "kernels/config/sm90_gemm.h"
#include "plan/gemm.h"
#include "support/sass.h"

namespace octofold::test {

inline void expect_sound(const config::Sm90GemmConfig& config) {
  const std::string description = plan::describe(config);
  const jit::Binary binary =
      jit::compile({plan::kGemmHeader, plan::kernel_name(plan::kGemmKernel, config),
                    plan::architecture(plan::kHopper), description},
                   cuda::kernel_headers());
  EXPECT_EQ(binary.resources.spill_store_bytes, 0) << description;
  EXPECT_EQ(binary.resources.stack_bytes, 0) << description;
  EXPECT_EQ(count_operations(binary.cubin, SassOperation::kLdl), 0) << description;
  EXPECT_EQ(count_operations(binary.cubin, SassOperation::kStl), 0) << description;
  // Four products of 32 values of K for each sub-tile; the compiler unrolls the loop of small
  // tiles.
  const int products = count_operations(binary.cubin, SassOperation::kQgmma);
  EXPECT_GE(products, 4 * config.sub_tiles()) << description;
  EXPECT_EQ(products % (4 * config.sub_tiles()), 0) << description;
  EXPECT_LE(binary.resources.registers, config.registers_at_start()) << description;
}

}  // namespace octofold::test
