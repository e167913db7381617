// The kernels that operations ask for are those of plan/precompiled.h: kernels are told apart by
// all that a call says.
#include "cuda/precompiled_kernels.h"

#include "octofold/scale_layout.h"

#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "plan/precompiled.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::Work;
using test::address;
using test::kGpu;

class PrecompiledKernelsTest : public FakeGpuTest {
 protected:
  PrecompiledKernelsTest() {
    state().params_bytes = 0;  // nobody looks at them here, and kernels differ in their size
    for (const plan::KernelPlan& kernel : plan::precompiled_kernels(plan::kHopper))
      all_.insert(kernel.kernel);
    precompiled_ = [this](const jit::Program& program) -> std::optional<jit::Binary> {
      EXPECT_EQ(program.architecture, "sm_90a");
      EXPECT_TRUE(all_.contains(program.kernel)) << program.description;
      return jit::Binary{.symbol = program.kernel, .image = {'c', 'u'}, .resources = {}};
    };
  }
  ~PrecompiledKernelsTest() override {
    EXPECT_EQ(compilations_, 0);
    EXPECT_GT(state().launches.size(), 0u);
  }
  Device& gpu() { return runtime().device(0); }

 private:
  std::set<std::string> all_;
};

CastTarget codes(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  return {matrix(address(0x10000), DType::kE4M3, rows, cols, cols, kGpu),
          scale_layout(granularity, rows, cols, DeviceType::kCuda).view(address(0x20000), kGpu),
          {.granularity = granularity}};
}

core::Product product_of(std::int64_t m, std::int64_t n, std::int64_t k) {
  core::Product product = test::product(m, n, k);
  product.b.data.dtype = DType::kE4M3;
  return product;
}

TEST_F(PrecompiledKernelsTest, Casts) {
  for (const auto& [granularity, name, rows, cols] : kGranularityTable) {
    for (const auto& rule : {config::kDeepGemmRule, config::kTorchAoRule}) {
      const config::CastFormat format{.granularity = granularity, .rule = rule};
      const auto x = matrix<const void>(address(0x1000), DType::kBFloat16, 333, 7168, 7168, kGpu);
      cast(gpu(), x, {.rows = codes(granularity, 333, 7168)}, format, {});
    }
  }
}

TEST_F(PrecompiledKernelsTest, Products) {
  for (const std::int64_t m : {1, 77, 4096}) {
    multiply(gpu(), product_of(m, 7168, 2048), {});
  }
}

TEST_F(PrecompiledKernelsTest, ProductsOfGroups) {
  constexpr std::int64_t kGroups = 32, kFeatures = 7168, kHidden = 2048;
  for (const std::int64_t rows : {8, 128, 1024}) {
    core::Product product = product_of(kGroups * rows, kFeatures, kHidden);
    product.b.data = product_of(1, kGroups * kFeatures, kHidden).b.data;
    for (const Work work : {Work::kGroupedRows, Work::kMaskedRows}) {
      product.groups = {.work = work,
                        .count = kGroups,
                        .numbers = test::kNumbers,
                        .scale_stride = kFeatures / 128 * kHidden / 128,
                        .expected_rows = rows,
                        .max_rows = kGroups * rows};
      multiply(gpu(), product, {});
    }
  }
}

TEST_F(PrecompiledKernelsTest, WeightedSumsOfExperts) {
  constexpr std::int64_t kTokens = 16, kSlots = 8;
  const auto slots = [](std::uint64_t where, DType dtype) {
    return matrix<const void>(address(where), dtype, kTokens, kSlots, kSlots, kGpu);
  };
  for (const std::int64_t cols : {2048, 4096, 7168}) {
    combine(gpu(),
            {.y = matrix<const void>(address(0x1000), DType::kBFloat16, 128, cols, cols, kGpu),
             .positions = slots(0x9000, DType::kInt32),
             .weights = slots(0xa000, DType::kFloat32),
             .out = matrix(address(0x20000), DType::kBFloat16, kTokens, cols, cols, kGpu)},
            {});
  }
}

// The archive that tests are linked from brings none.
TEST(NoPrecompiledKernelsTest, AreThereInTests) {
  EXPECT_TRUE(precompiled_kernels().empty());
  EXPECT_EQ(precompiled_kernel({"kernels/sm90/kernel.h", "f", "sm_90a", "a kernel"}), std::nullopt);
}

}  // namespace
}  // namespace octofold::cuda
