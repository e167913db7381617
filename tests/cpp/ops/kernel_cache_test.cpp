// The public side of the kernel cache: what is warmed is what gemm() loads.
#include "octofold/kernel_cache.h"

#include <fstream>

#include "octofold/octofold.h"

#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "cuda/kernel_headers.h"
#include "jit/kernel_cache.h"
#include "support/nvrtc.h"
#include "support/test.h"

namespace octofold {
namespace {

namespace fs = std::filesystem;
using cuda::error_of;

// The process reads OCTOFOLD_CACHE_DIR once, so all tests of this file share a folder.
class OwnFolder : public testing::Environment {
 public:
  OwnFolder() {
    std::string pattern = (fs::temp_directory_path() / "octofold-ops-cache-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    setenv("OCTOFOLD_CACHE_DIR", (root_ / "cache").c_str(), 1);
  }
  ~OwnFolder() override { fs::remove_all(root_); }  // where tests are only listed, too

 private:
  fs::path root_;
};
const auto* const kOwnFolder = testing::AddGlobalTestEnvironment(new OwnFolder);

// Its small tile compiles quickly.
const GemmProblem kSmall{.m = 16, .n = 64, .k = 256, .form = {.bias = Addend::kFloat32}};

class KernelCacheApiTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
    clear_kernel_cache();
  }
};

TEST_F(KernelCacheApiTest, WarmedKernelsAreListedAndCleared) {
  EXPECT_TRUE(list_kernel_cache().empty());
  GemmProblem same_kernel = kSmall;
  same_kernel.n += 16;  // sizes are no part of a kernel
  std::vector<std::pair<std::int64_t, std::int64_t>> progress;
  const WarmOptions options{.progress = [&](std::int64_t done, std::int64_t total) {
    progress.emplace_back(done, total);
  }};

  const WarmReport first = warm_kernel_cache(std::vector{kSmall, same_kernel}, options);
  EXPECT_EQ(first.compiled, 1);
  EXPECT_EQ(first.found, 0);
  EXPECT_THAT(progress, ElementsAre(std::pair(0, 1), std::pair(1, 1)));

  const WarmReport second = warm_kernel_cache(std::vector{kSmall, same_kernel});
  EXPECT_EQ(second.compiled, 0);
  EXPECT_EQ(second.found, 1);

  const std::vector<CachedKernel> kernels = list_kernel_cache();
  ASSERT_EQ(kernels.size(), 1u);
  const CachedKernel& kernel = kernels.front();
  EXPECT_EQ(kernel.file.parent_path(), kernel_cache_folder());
  EXPECT_EQ(kernel.bytes, static_cast<std::int64_t>(fs::file_size(kernel.file)));
  EXPECT_THAT(kernel.description,
              HasSubstr("gemm: a e4m3 1x128, b e4m3 128x128, out bfloat16, bias float32"));
  EXPECT_EQ(kernel.architecture, "sm_90a");
  EXPECT_GT(kernel.registers, 0);
  EXPECT_EQ(kernel.fault, "");
  const auto age = std::chrono::system_clock::now() - kernel.written;
  EXPECT_LT(std::chrono::abs(age), std::chrono::hours(1));

  EXPECT_EQ(clear_kernel_cache(), 1);
  EXPECT_TRUE(list_kernel_cache().empty());
  EXPECT_EQ(clear_kernel_cache(), 0);
}

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
std::vector<GemmProblem> several() {
  std::vector<GemmProblem> problems;
  for (const Granularity granularity : {Granularity::kTensor, Granularity::kChannel}) {
    for (const DType out : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      GemmProblem problem = kSmall;
      problem.form.a.scales = problem.form.b.scales = granularity;
      problem.form.out = out;
      problem.form.bias = Addend::kNone;
      problems.push_back(problem);
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

TEST_F(KernelCacheApiTest, AFolderThatCannotBeWrittenIsAnError) {
  const fs::path folder = kernel_cache_folder();
  fs::remove_all(folder);
  std::ofstream(folder) << "a file where the folder should be";
  const std::string error =
      error_of([] { warm_kernel_cache(std::vector{kSmall}); }, ErrorCode::kIo);
  fs::remove(folder);
  EXPECT_THAT(error, HasSubstr(folder.string()));
}

// gemm() itself, up to the driver, with a compiler that writes down what it is asked for.
class WarmedGemmTest : public cuda::FakeGpuTest {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
    clear_kernel_cache();
  }

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
  void* const data = reinterpret_cast<void*>(next += 1 << 20);
  return shape.size() == 1 ? vector(data, dtype, shape[0], kGpu)
                           : matrix(data, dtype, shape[0], shape[1], shape[1], kGpu);
}

core::Product product_of(const GemmProblem& problem) {
  const auto scaled = [](DType dtype, Granularity granularity, std::int64_t rows,
                         std::int64_t cols) -> ScaledTensorView {
    return {on_gpu(dtype, {rows, cols}),
            on_gpu(DType::kFloat32, scale_shape(granularity, rows, cols)), granularity};
  };
  const auto& [m, n, k, form] = problem;
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
  const GemmProblem problems[] = {
      kSmall,
      {.m = 1000, .n = 512, .k = 640, .form = {.out = DType::kFloat16, .c = Addend::kOutputType}},
      {.m = 77,
       .n = 130,
       .k = 333,
       .form = {.b = {DType::kE5M2, Granularity::kBlock128x128}, .out = DType::kFloat32}},
      {.m = 128, .n = 96, .k = 256, .form = {.b = {.scales = Granularity::kBlock1x128}}},
      {.m = 64,
       .n = 99,
       .k = 128,
       .form = {.a = {.scales = Granularity::kBlock128x128},
                .b = {.scales = Granularity::kChannel},
                .c = Addend::kFloat32}},
      {.m = 1,
       .n = 64,
       .k = 48,
       .form = {.a = {.scales = Granularity::kTensor},
                .b = {.scales = Granularity::kTensor},
                .fast_accumulation = true}}};
  for (const GemmProblem& problem : problems) {
    const jit::Program program = program_of(product_of(problem));
    EXPECT_FALSE(jit::is_cached(program, cuda::kernel_headers())) << program.description;
    warm_kernel_cache({&problem, 1});
    EXPECT_TRUE(jit::is_cached(program, cuda::kernel_headers())) << program.description;
  }
}

TEST_F(WarmedGemmTest, TheNumberOfMultiprocessorsMatters) {
  const GemmProblem problem{.m = 512, .n = 512, .k = 256};
  state().multiprocessors = 4;
  const jit::Program on_4 = program_of(product_of(problem));
  state().multiprocessors = 132;
  const jit::Program on_132 = program_of(product_of(problem));
  ASSERT_NE(on_4.kernel, on_132.kernel);
  warm_kernel_cache({&problem, 1}, {.multiprocessors = 4});
  EXPECT_TRUE(jit::is_cached(on_4, cuda::kernel_headers()));
  EXPECT_FALSE(jit::is_cached(on_132, cuda::kernel_headers()));
}

// Returns the error of a call that needs neither NVRTC nor a folder.
std::string warm_error(const GemmProblem& problem, ErrorCode code,
                       const WarmOptions& options = {}) {
  return error_of([&] { warm_kernel_cache({&problem, 1}, options); }, code);
}

TEST(WarmErrorsTest, NameWhatIsWrong) {
  const GemmProblem good{.m = 16, .n = 16, .k = 16};
  EXPECT_THAT(warm_error(good, ErrorCode::kUnsupported, {.architecture = "sm_80"}),
              AllOf(HasSubstr("'sm_80'"), HasSubstr("sm_90a")));
  EXPECT_THAT(warm_error(good, ErrorCode::kInvalidArgument, {.multiprocessors = 1}),
              HasSubstr("'multiprocessors': expected at least 2, got 1"));

  GemmProblem problem = good;
  problem.n = 0;
  EXPECT_THAT(warm_error(problem, ErrorCode::kInvalidArgument), HasSubstr("16×0×16"));
  problem = good;
  problem.m = std::int64_t{1} << 31;
  EXPECT_THAT(warm_error(problem, ErrorCode::kUnsupported), HasSubstr("2147483648×16×16"));
  problem = good;
  problem.form.a.type = DType::kBFloat16;
  EXPECT_THAT(warm_error(problem, ErrorCode::kInvalidArgument), HasSubstr("argument 'a'"));
  problem = good;
  problem.form.out = DType::kE4M3;
  EXPECT_THAT(warm_error(problem, ErrorCode::kInvalidArgument), HasSubstr("argument 'out'"));
  problem = good;
  problem.form.fast_accumulation = true;
  EXPECT_THAT(warm_error(problem, ErrorCode::kInvalidArgument), HasSubstr("'fast_accumulation'"));
}

}  // namespace
}  // namespace octofold
