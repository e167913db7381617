#include "ops/product.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "octofold/tuning.h"

#include "core/flatten.h"
#include "core/format.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/inputs.h"
#include "plan/problem_text.h"

namespace octofold::ops {
namespace {

constexpr std::initializer_list<DType> kOutputTypes = {DType::kBFloat16, DType::kFloat16,
                                                       DType::kFloat32};

template <typename Product>
void multiply(std::string_view operation, const Product& product, Stream stream) {
  const Device device = product.out.device;
  if (!is_on_cpu(device)) return cuda::multiply(gpu(operation, device), product, stream);
  if (!product.candidate.empty()) {
    core::fail_argument(operation, "candidate",
                        "it to be omitted for tensors on the CPU, which has one kernel",
                        product.candidate);
  }
  cpu::multiply(product);
}

using Problems = std::shared_ptr<std::vector<std::string>>;

// Recordings that live, and a count of them that calls can read without the lock.
struct Recordings {
  std::mutex mutex;
  std::vector<Problems> all;
  std::atomic<int> count = 0;
};

Recordings& recordings() {
  static Recordings recordings;
  return recordings;
}

std::string& candidate_of_thread() {
  thread_local std::string name;
  return name;
}

template <typename Product>
void note(const Product& product) {
  auto& [mutex, all, count] = recordings();
  if (count.load(std::memory_order_relaxed) == 0) return;
  auto problem = plan::problem_of(product);
  // Places elsewhere say nothing of where tensors would lie on a GPU.
  if (product.out.device.type != DeviceType::kCuda) problem = plan::as_allocated(problem);
  const std::string text = plan::text_of(problem);
  const std::lock_guard lock(mutex);
  for (const Problems& noted : all) {
    if (std::ranges::find(*noted, text) == noted->end()) noted->push_back(text);
  }
}

}  // namespace

const std::string& used_candidate() { return candidate_of_thread(); }

void require_accumulation(const core::Arguments& check, Granularity a, Granularity b, bool fast) {
  if (!fast || (!varies_along_k(a) && !varies_along_k(b))) return;
  check.fail("fast_accumulation",
             "false for scales that vary along K, because these are applied after every 128 of K",
             core::format("true for {} × {}", name(a), name(b)));
}

void check_c(const core::Arguments& check, const TensorView& c, const MutableTensorView& out) {
  check.require_input_matrix("c", c);
  check.require_dtype("c", c, {out.dtype, DType::kFloat32});
  check.require_same_device("c", c, out.device);
  if (!is_same_memory(out, c)) check.require_disjoint("out", out, "c", c);
}

void check_operands(const core::Arguments& check, const ScaledTensorView& a,
                    const ScaledTensorView& b) {
  check.require_scaled_input("a", a);
  check.require_scaled_input("b", b);
  check.require_same_device("b", b.data, a.data.device);
  require_depth(check, "b", b.data, "a", a.data);
}

void require_depth(const core::Arguments& check, std::string_view argument, const TensorView& given,
                   std::string_view other, const TensorView& matrix) {
  if (given.shape[1] == matrix.shape[1]) return;
  check.fail(argument, core::format("K = {} columns as in '{}'", matrix.shape[1], other),
             core::format("{}", given.shape[1]));
}

void check_output(const core::Arguments& check, const MutableTensorView& out,
                  std::span<const CastInput> inputs) {
  check.require_matrix("out", out);
  check.require_dtype("out", out, kOutputTypes);
  check.require_same_device("out", out, inputs.front().view.device);
  require_apart(check, "out", out, inputs);
}

void check_bias(const core::Arguments& check, const std::optional<TensorView>& bias,
                const MutableTensorView& out) {
  if (!bias) return;
  check_vector(check, "bias", *bias, {out.dtype, DType::kFloat32}, out.shape[1], out.device);
  check.require_disjoint("out", out, "bias", *bias);
}

void require_shape_of_result(const core::Arguments& check, std::string_view argument,
                             const TensorView& tensor, const TensorView& a, std::int64_t columns) {
  std::array<std::int64_t, kMaxRank> shape = a.shape;
  const auto rank = static_cast<std::size_t>(a.rank);
  shape[rank - 1] = columns;
  check.require_shape(argument, tensor, std::span<const std::int64_t>(shape.data(), rank));
}

DotOperand flat_operand(const core::Arguments& check, std::string_view argument,
                        const DotOperand& given, Inputs& inputs) {
  DotOperand operand = given;
  if (given.scale) {
    const ScaledTensorView flat = core::flatten(
        check, argument, ScaledTensorView{given.data, *given.scale, given.granularity});
    check.require_scaled_input(argument, flat);
    operand.data = flat.data;
    operand.scale = flat.scale;
    inputs.add(argument, flat.scale, ".scale");
  } else {
    operand.data = core::flatten(check, argument, given.data);
    check.require_input_matrix(argument, operand.data);
    check.require_dtype(
        argument, operand.data,
        {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3, DType::kE5M2});
  }
  inputs.add(argument, operand.data);
  return operand;
}

void run(std::string_view operation, const core::Product& product, Stream stream) {
  if (product.out.element_count() > 0) note(product);
  if (has_memory(product.out.device)) multiply(operation, product, stream);
}

void run(std::string_view operation, const core::WeightOnlyProduct& product, Stream stream) {
  if (product.out.element_count() == 0) return;
  note(product);
  if (has_memory(product.out.device)) multiply(operation, product, stream);
}

}  // namespace octofold::ops

namespace octofold {

ProductRecording::ProductRecording() : problems_(std::make_shared<std::vector<std::string>>()) {
  auto& [mutex, all, count] = ops::recordings();
  const std::lock_guard lock(mutex);
  all.push_back(problems_);
  ++count;
}

ProductRecording::~ProductRecording() {
  auto& [mutex, all, count] = ops::recordings();
  const std::lock_guard lock(mutex);
  std::erase(all, problems_);
  --count;
}

std::vector<std::string> ProductRecording::problems() const {
  const std::lock_guard lock(ops::recordings().mutex);
  return *problems_;
}

std::string use_candidate(std::string name) {
  return std::exchange(ops::candidate_of_thread(), std::move(name));
}

}  // namespace octofold
