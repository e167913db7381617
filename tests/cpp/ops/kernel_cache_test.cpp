// The public side of the kernel cache: what is warmed is what gemm() loads.
#include "octofold/kernel_cache.h"

#include "octofold/octofold.h"

#include "core/format.h"
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "cuda/kernel_headers.h"
#include "jit/kernel_cache.h"
#include "plan/problem_text.h"
#include "support/nvrtc.h"
#include "support/shaped.h"
#include "support/test.h"
#include "support/test_folder.h"

namespace octofold {
namespace {

// The process reads OCTOFOLD_CACHE_DIR once, so all tests of this file share a folder.
class OwnFolder : public testing::Environment {
 public:
  OwnFolder() { setenv("OCTOFOLD_CACHE_DIR", (root_ / "cache").c_str(), 1); }

 private:
  const test::TestFolder root_;
};
const auto* const kOwnFolder = testing::AddGlobalTestEnvironment(new OwnFolder);

// Its small tile compiles quickly.
const std::string kSmall = "gemm: m 16, n 64, k 256, bias float32";

class KernelCacheApiTest : public test::NvrtcTest<> {
 protected:
  KernelCacheApiTest() { clear_kernel_cache(); }
};

TEST_F(KernelCacheApiTest, OtherGpusProductsAreWarmedToo) {
  for (const char* architecture : {"sm_89", "sm_120"}) {
    EXPECT_EQ(warm_kernel_cache(std::vector{kSmall}, {.architecture = architecture}).compiled, 1);
    EXPECT_EQ(warm_kernel_cache(std::vector{kSmall}, {.architecture = architecture}).found, 1);
  }
  std::vector<std::string> architectures;
  for (const CachedKernel& kernel : list_kernel_cache()) {
    architectures.push_back(kernel.architecture);
  }
  EXPECT_THAT(architectures, testing::UnorderedElementsAre("sm_89", "sm_120"));
}

// Six kernels.
std::vector<std::string> several() {
  std::vector<std::string> problems;
  for (const char* scales : {"tensor", "channel"}) {
    for (const char* out : {"bfloat16", "float16", "float32"}) {
      problems.push_back(
          core::format("gemm: m 16, n 64, k 256, a e4m3 {0}, b e4m3 {0}, out {1}", scales, out));
    }
  }
  return problems;
}

TEST_F(KernelCacheApiTest, SeveralAreCompiledTogether) {
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<std::int64_t> told;
  const auto progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(total, 6);
    told.push_back(done);
  };
  const WarmReport report = warm_kernel_cache(several(), {.progress = progress});
  EXPECT_EQ(report.compiled, 6);
  EXPECT_EQ(report.found, 0);
  EXPECT_EQ(list_kernel_cache().size(), 6u);
  EXPECT_EQ(told.front(), 0);
  EXPECT_EQ(told.back(), 6);
  EXPECT_EQ(std::ranges::adjacent_find(told, std::ranges::greater_equal()), told.end());
}

TEST_F(KernelCacheApiTest, AnExceptionOfTheProgressEndsTheRun) {
  for (const std::int64_t last : {0, 1}) {
    const auto stop = [&](std::int64_t done, std::int64_t) {
      if (done >= last) throw std::runtime_error("stop");
    };
    EXPECT_THROW(warm_kernel_cache(several(), {.progress = stop}), std::runtime_error);
    EXPECT_EQ(list_kernel_cache().empty(), last == 0);
  }
}

// gemm() itself, up to the driver, with a compiler that writes down what it is asked for.
class WarmedGemmTest : public test::NvrtcTest<cuda::FakeGpuTest> {
 protected:
  WarmedGemmTest() { clear_kernel_cache(); }

  jit::Program program_of(const core::Product& product) {
    jit::Program asked;
    const auto compile = [&](const jit::Program& program) {
      asked = program;
      return jit::Binary{.symbol = program.kernel, .image = {'c', 'u'}, .resources = {}};
    };
    cuda::Runtime runtime(OCTOFOLD_FAKE_DRIVER, {.compile = compile});
    cuda::multiply(runtime.device(0), product, {});
    return asked;
  }
};

constexpr Device kGpu{DeviceType::kCuda, 0};

// Somewhere on a GPU, aligned as an allocator's memory is. Nobody reads it.
MutableTensorView on_gpu(DType dtype, const std::vector<std::int64_t>& shape) {
  static std::uintptr_t next = 0;
  return test::tensor(reinterpret_cast<void*>(next += 1 << 20), dtype, shape, kGpu);
}

core::Product product_of(std::string_view text) {
  const auto scaled = [](DType dtype, Granularity granularity, std::int64_t rows,
                         std::int64_t cols) -> ScaledTensorView {
    return {on_gpu(dtype, {rows, cols}),
            on_gpu(DType::kFloat32, scale_shape(granularity, rows, cols)), granularity};
  };
  const auto problem = std::get<plan::GemmProblem>(plan::parse_problem(text));
  const auto& [m, n, k, form] = problem.product;
  const auto type_of = [&](Addend addend) {
    return addend == Addend::kOutputType ? form.out : DType::kFloat32;
  };
  core::Product product{.a = scaled(form.a.type, form.a.scales, m, k),
                        .b = scaled(form.b.type, form.b.scales, n, k),
                        .out = on_gpu(form.out, {m, n}),
                        .fast_accumulation = form.fast_accumulation};
  if (form.c != Addend::kNone) product.c = on_gpu(type_of(form.c), {m, n});
  if (form.bias != Addend::kNone) product.bias = on_gpu(type_of(form.bias), {n});
  return product;
}

TEST_F(WarmedGemmTest, WhatIsWarmedIsWhatGemmLoads) {
  const std::string problems[] = {
      kSmall,
      "gemm: m 1000, n 512, k 640, out float16, c float16",
      "gemm: m 77, n 130, k 333, b e5m2 128x128, out float32",
      "gemm: m 128, n 96, k 256, b e4m3 1x128",
      "gemm: m 64, n 99, k 128, a e4m3 128x128, b e4m3 channel, c float32",
      "gemm: m 1, n 64, k 48, a e4m3 tensor, b e4m3 tensor, fast_accumulation"};
  for (const std::string& problem : problems) {
    const jit::Program program = program_of(product_of(problem));
    EXPECT_FALSE(jit::is_cached(program, cuda::kernel_headers())) << program.description;
    warm_kernel_cache({&problem, 1});
    EXPECT_TRUE(jit::is_cached(program, cuda::kernel_headers())) << program.description;
  }
}

TEST_F(WarmedGemmTest, TheNumberOfMultiprocessorsMatters) {
  const std::string problem = "gemm: m 512, n 512, k 256";
  state().multiprocessors = 4;
  const jit::Program on_4 = program_of(product_of(problem));
  state().multiprocessors = 132;
  const jit::Program on_132 = program_of(product_of(problem));
  ASSERT_NE(on_4.kernel, on_132.kernel);
  warm_kernel_cache({&problem, 1}, {.multiprocessors = 4});
  EXPECT_TRUE(jit::is_cached(on_4, cuda::kernel_headers()));
  EXPECT_FALSE(jit::is_cached(on_132, cuda::kernel_headers()));
}

// Products of every kind are planned and compiled, those of weights with all of their kernels.
TEST_F(KernelCacheApiTest, ProductsOfEveryKindAreWarmed) {
  const std::vector<std::string> problems{
      "grouped_gemm: m 64, n 128, k 256, groups 4 of rows", "gated_gemm: m 64, n 128, k 256",
      "gemm: m 64, n 128, k 256, cast_from bfloat16", "gemm_weight_only: m 64, n 128, k 4096"};
  const WarmReport report = warm_kernel_cache(problems);
  EXPECT_GE(report.compiled + report.precompiled, 4);
  EXPECT_EQ(warm_kernel_cache(problems).compiled, 0);
}

}  // namespace
}  // namespace octofold
