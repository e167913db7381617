// The kernel of rotary embeddings, run on the host: the bits of the CPU backend, whatever the
// layout, and nothing written beside y.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/rotary.h"

#include "cpu/matrices.h"
#include "kernels/rotary/rotary.h"
#include "support/test.h"

namespace octofold {
namespace {

constexpr std::size_t kGuard = 16;

struct Shape {
  std::int64_t batch, tokens, heads, head_size;
  bool by_heads = false;  // memory has heads before tokens
  std::int64_t batches_of_tables = 1;

  std::int64_t size() const { return batch * tokens * heads * head_size; }
  std::array<std::int64_t, kMaxRank> strides() const {
    const std::int64_t of_batch = tokens * heads * head_size;
    if (by_heads) return {of_batch, head_size, tokens * head_size, 1};
    return {of_batch, heads * head_size, head_size, 1};
  }
};

// Random numbers between guards, `offset` elements behind an aligned address.
template <DType kType>
class Numbers {
 public:
  using T = numeric::Storage<kType>;

  Numbers(std::int64_t size, std::size_t offset)
      : offset_(kGuard + offset), memory_(as_size(size) + 2 * kGuard + offset, T{0x3F}) {
    static test::Random random;
    std::vector<float> values(as_size(size));
    for (float& value : values) {
      value = static_cast<float>(static_cast<int>(random() % 8192)) / 4096 - 1;
    }
    cpu::store(values.data(), size, memory_.data(), kType, static_cast<std::int64_t>(offset_),
               Overflow::kNan);
  }
  T* data() { return memory_.data() + offset_; }
  const std::vector<T>& memory() const { return memory_; }

 private:
  std::size_t offset_;
  std::vector<T> memory_;
};

template <DType kType, bool kVectors, int kThreadsPerToken>
void expect_as_on_cpu(const Shape& shape, std::size_t offset = 0) {
  constexpr config::RotaryConfig kConfig{
      .type = kType, .vectors = kVectors, .threads_per_token = kThreadsPerToken};
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t of_tables = shape.batches_of_tables * shape.tokens * shape.head_size;
  Numbers<kType> x(shape.size(), offset), cos(of_tables, offset), sin(of_tables, offset);
  for (const bool inverse : {false, true}) {
    Numbers<kType> y(shape.size(), offset), expected(y);
    const std::int64_t of_batch = shape.tokens * shape.head_size;
    const auto table = [&](Numbers<kType>& numbers) {
      return TensorView{numbers.data(),
                        kType,
                        3,
                        {shape.batches_of_tables, shape.tokens, shape.head_size},
                        {of_batch, shape.head_size, 1}};
    };
    const MutableTensorView on_cpu{
        expected.data(),
        kType,
        4,
        {shape.batch, shape.tokens, shape.heads, shape.head_size},
        Shape(shape.batch, shape.tokens, shape.heads, shape.head_size).strides()};
    TensorView from = on_cpu;
    from.data = x.data();
    from.strides = shape.strides();
    rotary({.x = from, .cos = table(cos), .sin = table(sin), .inverse = inverse}, on_cpu);

    const long long batch_stride = shape.batches_of_tables == 1 ? 0 : of_batch;
    const auto strides = shape.strides();
    const config::RotaryParams params{
        .x = x.data(),
        .x_batch_stride = strides[0],
        .x_token_stride = strides[1],
        .x_head_stride = strides[2],
        .cos = {cos.data(), batch_stride, shape.head_size},
        .sin = {sin.data(), batch_stride, shape.head_size},
        .y = y.data(),
        .all_tokens = static_cast<unsigned>(shape.batch * shape.tokens),
        .tokens = static_cast<unsigned>(shape.tokens),
        .heads = static_cast<int>(shape.heads),
        .half = static_cast<int>(shape.head_size / 2),
        .inverse = inverse};
    test::launch(
        config::ceil_divide(shape.batch * shape.tokens, std::int64_t{kConfig.tokens_per_block()}),
        kConfig.threads(), [&] { rotary_kernel<kConfig>(params); });
    EXPECT_EQ(y.memory(), expected.memory()) << shape.heads << " " << shape.head_size << inverse;
  }
}

using enum DType;

TEST(RotaryKernelTest, InVectors) {
  expect_as_on_cpu<kBFloat16, true, 64>({1, 9, 32, 128});
  expect_as_on_cpu<kBFloat16, true, 8>({2, 35, 4, 128, true});
  expect_as_on_cpu<kFloat16, true, 8>({2, 5, 5, 64, false, 2});  // heads that do not fill a thread
  expect_as_on_cpu<kFloat32, true, 128>({1, 3, 33, 256});        // several times a thread
}

TEST(RotaryKernelTest, ElementByElement) {
  expect_as_on_cpu<kBFloat16, false, 4>({2, 7, 3, 50, true, 2});
  expect_as_on_cpu<kFloat16, false, 1>({1, 300, 1, 2});
  expect_as_on_cpu<kFloat32, false, 4>({1, 5, 2, 30}, 1);
  expect_as_on_cpu<kBFloat16, false, 16>({1, 5, 6, 128}, 3);  // not aligned
}

}  // namespace
}  // namespace octofold
