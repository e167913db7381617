// The table of what works where, as the public call has it: which columns there are, and that a
// call that nothing takes is refused for the reason that the table gives.
#include <algorithm>
#include <gmock/gmock.h>
#include <string>
#include <vector>

#include "octofold/octofold.h"

#include "ops/info.h"
#include "support/shaped.h"

namespace octofold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSize = 256;

// A matrix of ones with scales of a form.
class Matrix {
 public:
  explicit Matrix(const std::string& form)
      : matrix_(kSize, kSize, {.granularity = parse_granularity(form)}) {
    std::ranges::fill(matrix_.codes(), std::uint8_t{0x38});
    std::ranges::fill(matrix_.scales(), 1.0f);
  }
  CastTarget target() { return matrix_.target(); }
  ScaledTensorView input() const { return matrix_.view(); }

 private:
  ScaledMatrix matrix_;
};

std::vector<std::string> names_of(const Capabilities& capabilities) {
  std::vector<std::string> names;
  for (const CapabilityTarget& target : capabilities.targets) names.push_back(target.name);
  return names;
}

GpuInfo gpu(std::int32_t index, const char* name, std::int32_t major, std::int32_t minor) {
  GpuInfo info;
  info.index = index;
  info.name = name;
  info.compute_major = major;
  info.compute_minor = minor;
  return info;
}

const Component kThere{.available = true, .detail = "13"};

cuda::DriverProbe two_gpus() { return {kThere, {gpu(0, "H200", 9, 0), gpu(1, "Orin", 8, 7)}}; }

std::vector<std::int32_t> gpus_of(const Capabilities& all, std::string_view name) {
  const auto target = std::ranges::find(all.targets, name, &CapabilityTarget::name);
  return target == all.targets.end() ? std::vector<std::int32_t>{-1} : target->gpus;
}

TEST(CapabilitiesTest, GpusAtHandHaveTheirColumns) {
  const Capabilities all = ops::capabilities_of(two_gpus(), kThere, 0);
  EXPECT_THAT(names_of(all),
              ElementsAre("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "12.0", "cpu"));
  EXPECT_THAT(gpus_of(all, "9.0"), ElementsAre(0));
  EXPECT_THAT(gpus_of(all, "8.7"), ElementsAre(1));
  EXPECT_THAT(gpus_of(all, "8.6"), ElementsAre());
  EXPECT_EQ(all.at_hand, "cuda:0 is H200, 9.0; cuda:1 is Orin, 8.7");
}

TEST(CapabilitiesTest, AGpuCountsAsItsTarget) {
  const Capabilities all = ops::capabilities_of(two_gpus(), kThere, 86);
  EXPECT_THAT(gpus_of(all, "8.6"), ElementsAre(0, 1));
  EXPECT_THAT(all.at_hand, HasSubstr("H200, 9.0, as 8.6 by OCTOFOLD_TARGET"));
  const Capabilities later = ops::capabilities_of(two_gpus(), kThere, 89);
  EXPECT_THAT(gpus_of(later, "8.9"), ElementsAre(0));
  EXPECT_THAT(later.at_hand, HasSubstr("Orin, but environment variable OCTOFOLD_TARGET"));
}

TEST(CapabilitiesTest, SaysWhatIsMissing) {
  const Component missing{.available = false, .detail = "no such file"};
  EXPECT_THAT(ops::capabilities_of(two_gpus(), missing, 0).at_hand,
              HasSubstr("kernels cannot be compiled: no such file"));
  EXPECT_EQ(ops::capabilities_of({missing, {}}, missing, 0).at_hand,
            "no GPU is at hand (no such file): what would work on one");
}

bool multiply(const CapabilityRow& row, const MutableTensorView& out) {
  const std::string& called = row.operation;
  if (called != "gemm" && called != "grouped_gemm" && called != "gated_gemm") return false;
  const Matrix b(row.operands[1].form);
  if (row.operands[0].form == "numbers") {
    const std::vector<float> numbers(kSize * kSize, 1.0f);
    const TensorView x = matrix<const void>(numbers.data(), DType::kFloat32, kSize, kSize, kSize);
    gemm({.a = CastOperand{x}, .b = b.input(), .out = out});
    return true;
  }
  const Matrix a(row.operands[0].form);
  if (called == "gemm") gemm({.a = a.input(), .b = b.input(), .out = out});
  if (called == "grouped_gemm") {
    const std::int32_t offsets[] = {0, 128};
    grouped_gemm({.a = a.input(),
                  .b = b.input(),
                  .groups = DepthGroups{vector<const void>(offsets, DType::kInt32, 2)},
                  .out = test::shaped(out, {1, kSize, kSize})});
  }
  if (called == "gated_gemm") {
    ScaledMatrix h(kSize, kSize / 2, {.granularity = parse_granularity(row.operands[2].form)});
    gated_gemm({.a = a.input(), .b = b.input(), .out = h.target()});
  }
  return true;
}

bool multiply_by_weights(const CapabilityRow& row, MutableTensorView out) {
  const std::string& called = row.operation;
  if (called != "gemm_weight_only" && called != "gemm_weight_only_gradient") return false;
  const Matrix w(row.operands[1].form);
  const auto& [name, form, most_rows] = row.operands[0];
  if (most_rows != 0) out.shape[0] = most_rows;
  const std::int64_t rows = out.shape[0];
  const std::vector<float> zeros(kSize * kSize), scale(kSize * kSize, 1.0f);
  DotOperand x{matrix<const void>(zeros.data(), DType::kE4M3, rows, kSize, kSize)};
  if (form == "float32" || form == "float16" || form == "bfloat16") {
    x.data.dtype = parse_dtype(form);
  } else if (form != "fp8") {
    x.granularity = parse_granularity(form);
    x.scale = scale_layout(x.granularity, rows, kSize).view(scale.data());
  }
  if (called == "gemm_weight_only") {
    gemm_weight_only({.x = x, .w = w.input(), .out = out});
  } else {
    gemm_weight_only_gradient({.gradient = x.data, .w = w.input(), .out = out});
  }
  return true;
}

bool cast_numbers(const CapabilityRow& row) {
  const std::string& called = row.operation;
  const std::vector<float> numbers(kSize * kSize, 1.0f);
  const TensorView x = matrix<const void>(numbers.data(), DType::kFloat32, kSize, kSize, kSize);
  if (called == "quantize") {
    Matrix rows(row.operands[0].form);
    cast(x, {.rows = rows.target()});
  } else if (called == "cast") {
    Matrix rows(row.operands[0].form), transposed(row.operands[1].form);
    cast(x, {.rows = rows.target(), .transposed = transposed.target()});
  } else {
    return false;
  }
  return true;
}

// Calls the operation with operands of the row's forms, on the CPU, if it is one of those whose
// operands are matrices.
bool call(const CapabilityRow& row) {
  std::vector<float> memory(kSize * kSize);
  const MutableTensorView out = matrix(memory.data(), DType::kFloat32, kSize, kSize, kSize);
  return multiply(row, out) || multiply_by_weights(row, out) || cast_numbers(row);
}

TEST(CapabilitiesTest, OperationsDoWhatItSaysOfTheCpu) {
  int called = 0, refused = 0;
  for (const CapabilityRow& row : capabilities().rows) {
    const Support& support = row.support.back();
    EXPECT_EQ(support.why_not.empty(), support.how == SupportKind::kCpu) << row.operation;
    std::string error;
    try {
      if (!call(row)) continue;
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    ++called;
    std::string trace = row.operation;
    for (const CapabilityOperand& operand : row.operands) trace.append(" ").append(operand.form);
    if (support.how == SupportKind::kNone) {
      ++refused;
      EXPECT_THAT(error, HasSubstr(support.why_not)) << trace;
    } else {
      EXPECT_EQ(error, "") << trace;
    }
  }
  EXPECT_GT(called, 100);
  EXPECT_GT(refused, 12);
}

}  // namespace
}  // namespace octofold
