// The kernels that operations ask for are those of plan/precompiled.h: kernels are told apart by
// all that a call says.
#include "cuda/precompiled_kernels.h"

#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "plan/precompiled.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::Work;
using test::matrix_at;

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

core::Product product_of(std::int64_t m, std::int64_t n, std::int64_t k) {
  core::Product product = test::product(m, n, k);
  product.b.data.dtype = DType::kE4M3;
  return product;
}

TEST_F(PrecompiledKernelsTest, Casts) {
  for (const auto& [granularity, name, rows, cols] : kGranularityTable) {
    for (const auto& rule : {config::kDeepGemmRule, config::kTorchAoRule}) {
      const config::CastFormat format{.granularity = granularity, .rule = rule};
      cast(gpu(), TensorView(matrix_at(0x1000, DType::kBFloat16, 333, 7168)),
           {.rows = test::operand(DType::kE4M3, granularity, 333, 333, 7168, 0x10000)}, format, {});
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
  for (const std::int64_t cols : {2048, 4096, 7168}) {
    combine(gpu(),
            {.y = matrix_at(0x1000, DType::kBFloat16, 128, cols),
             .positions = matrix_at(0x9000, DType::kInt32, kTokens, kSlots),
             .weights = matrix_at(0xa000, DType::kFloat32, kTokens, kSlots),
             .out = matrix_at(0x20000, DType::kBFloat16, kTokens, cols)},
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
