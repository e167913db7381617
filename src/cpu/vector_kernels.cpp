#include "cpu/vector_kernels.h"

#include <vector>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "octofold/types.h"

#include "cpu/number_formats.h"

// Each loop is written once, as a function that is always inlined into those that are compiled for
// one kind of vectors: the compiler's own vector types become what the target has. With FMA, this
// file's products and sums are fused (src/CMakeLists.txt).
namespace octofold::cpu {
namespace {

#define OCTOFOLD_INLINED [[gnu::always_inline]] inline

// The compiler's vectors, at any address of their elements. (A template of `using` loses
// alignment.)
template <typename Value, int kWidth>
struct VectorOf {
  typedef Value type __attribute__((vector_size(kWidth * sizeof(Value)), aligned(4), may_alias));
};

// How a kind of vectors is used: sums of kRows rows by kVectors vectors stay in registers.
template <int kWidth_, int kVectors_, int kRows_>
struct Shape {
  static constexpr int kWidth = kWidth_, kVectors = kVectors_, kRows = kRows_;
  static constexpr int kPanel = kWidth * kVectors;
  static_assert(kMostPanel % kPanel == 0 && kScaleBlock % 4 == 0);
};

// Transposes squares of four.
template <typename Shape>
OCTOFOLD_INLINED void pack_panels(const float* b, std::int64_t count, float* packed) {
  using Four = VectorOf<float, 4>::type;
  constexpr std::int64_t kPanel = Shape::kPanel;
  for (std::int64_t j = 0; j < count; j += 4) {
    float* const out = packed + j / kPanel * kPanel * kScaleBlock + j % kPanel;
    for (std::int64_t k = 0; k < kScaleBlock; k += 4) {
      const float* const from = b + j * kScaleBlock + k;
      const Four row0 = *reinterpret_cast<const Four*>(from);
      const Four row1 = *reinterpret_cast<const Four*>(from + kScaleBlock);
      const Four row2 = *reinterpret_cast<const Four*>(from + 2 * kScaleBlock);
      const Four row3 = *reinterpret_cast<const Four*>(from + 3 * kScaleBlock);
      const Four low01 = __builtin_shufflevector(row0, row1, 0, 4, 1, 5);
      const Four high01 = __builtin_shufflevector(row0, row1, 2, 6, 3, 7);
      const Four low23 = __builtin_shufflevector(row2, row3, 0, 4, 1, 5);
      const Four high23 = __builtin_shufflevector(row2, row3, 2, 6, 3, 7);
      float* const to = out + k * kPanel;
      *reinterpret_cast<Four*>(to) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
      *reinterpret_cast<Four*>(to + kPanel) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
      *reinterpret_cast<Four*>(to + 2 * kPanel) =
          __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
      *reinterpret_cast<Four*>(to + 3 * kPanel) =
          __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
    }
  }
}

// kRows rows by a panel. What is at `block` are the first of them.
template <typename Shape, int kRows, typename Sum>
OCTOFOLD_INLINED void add_tile(const BlockProduct<Sum>& block) {
  constexpr int kWidth = Shape::kWidth, kVectors = Shape::kVectors;
  using Vector = VectorOf<float, kWidth>::type;
  using Sums = VectorOf<Sum, kWidth>::type;
  const float *const a = block.a, *const b = block.b;
  Sum* const sum = block.sum;
  Vector partial[kRows][kVectors] = {};
  // Zeros are stored and added to: where a choice stands between product and sum, compilers fuse
  // them for some numbers of rows and not for others, and a row's bits would depend on its place.
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(sum + i * block.stride, 1);
    if (!block.is_first) continue;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      *reinterpret_cast<Sums*>(sum + i * block.stride + j * kWidth) = Sums{};
    }
  }
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < block.depth; ++k) {
    Vector of_b[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      of_b[j] = *reinterpret_cast<const Vector*>(b + k * Shape::kPanel + j * kWidth);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) partial[i][j] += a[i * kScaleBlock + k] * of_b[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const auto& scale_b = *reinterpret_cast<const Vector*>(block.scale_b + j * kWidth);
      *reinterpret_cast<Sums*>(sum + i * block.stride + j * kWidth) +=
          __builtin_convertvector(partial[i][j], Sums) *
          (static_cast<Sum>(block.scale_a[i]) * __builtin_convertvector(scale_b, Sums));
    }
  }
}

// The rows that are left where kRows do not fit.
template <typename Shape, int kRows, typename Sum>
OCTOFOLD_INLINED void add_last_tile(const BlockProduct<Sum>& block) {
  if constexpr (kRows > 0) {
    if (block.rows == kRows) return add_tile<Shape, kRows>(block);
    add_last_tile<Shape, kRows - 1>(block);
  }
}

template <typename Shape, typename Sum>
OCTOFOLD_INLINED void add_panels(const BlockProduct<Sum>& block) {
  for (std::int64_t column = 0; column < block.columns; column += Shape::kPanel) {
    BlockProduct<Sum> tile = block;
    tile.b += column * kScaleBlock;
    tile.scale_b += column;
    tile.sum += column;
    for (; tile.rows >= Shape::kRows; tile.rows -= Shape::kRows) {
      add_tile<Shape, Shape::kRows>(tile);
      tile.a += Shape::kRows * kScaleBlock;
      tile.scale_a += Shape::kRows;
      tile.sum += Shape::kRows * tile.stride;
    }
    add_last_tile<Shape, Shape::kRows - 1>(tile);
  }
}

template <typename Format>
OCTOFOLD_INLINED void decode_by_table(const std::uint8_t* codes, std::int64_t count,
                                      float* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = Format::decode(codes[i]);
}

template <typename Format>
OCTOFOLD_INLINED void encode_each(const float* values, std::int64_t count, std::uint16_t* codes) {
  for (std::int64_t i = 0; i < count; ++i) {
    codes[i] = Format::encode(values[i], Overflow::kSaturate);
  }
}

using SmallShape = Shape<4, 2, 6>;
constexpr VectorKernels kSmall{
#ifdef __x86_64__
    .name = "SSE2",
#else
    .name = "NEON",
#endif
    .panel = SmallShape::kPanel,
    .pack = [](const float* b, std::int64_t count,
               float* packed) { pack_panels<SmallShape>(b, count, packed); },
    .add_block = [](const BlockProduct<float>& block) { add_panels<SmallShape>(block); },
    .add_block_in_double = [](const BlockProduct<double>& block) { add_panels<SmallShape>(block); },
    .decode_e4m3 = decode_by_table<E4M3>,
    .decode_e5m2 = decode_by_table<E5M2>,
    .encode_bfloat16 = encode_each<BFloat16>,
    .encode_float16 = encode_each<Float16>};

#ifdef __x86_64__

// Behind the parameters of a lambda as well as before a function.
#define OCTOFOLD_AVX2 __attribute__((target("avx2,fma,f16c")))
using Avx2Shape = Shape<8, 2, 6>;

// By way of FP16, whose conversion takes subnormal numbers at full speed: a code moved to where
// FP16 has its bits is the number over a power of two. A NaN gets all bits of its magnitude.
template <typename Format>
OCTOFOLD_AVX2 void decode_avx2(const std::uint8_t* codes, std::int64_t count, float* values) {
  constexpr int kShift = 10 - Format::format.mantissa_bits;
  constexpr float kFactor = 1 << (15 - Format::format.bias);
  constexpr int kLargest = Format::format.largest_code + (Format::format.has_infinity ? 1 : 0);
  const auto store = [&](__m128i half, __m128i is_nan, float* eight) OCTOFOLD_AVX2 {
    const __m256i all_ones = _mm256_srli_epi32(_mm256_cvtepi16_epi32(is_nan), 1);
    const __m256 value = _mm256_cvtph_ps(half) * kFactor;
    _mm256_storeu_ps(eight, _mm256_or_ps(value, _mm256_castsi256_ps(all_ones)));
  };
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i code =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7F));
    const __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(_mm256_set1_epi16(0x7F), code), 8);
    const __m256i half = _mm256_or_si256(_mm256_slli_epi16(magnitude, kShift), sign);
    const __m256i is_nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(kLargest));
    store(_mm256_castsi256_si128(half), _mm256_castsi256_si128(is_nan), values + i);
    store(_mm256_extracti128_si256(half, 1), _mm256_extracti128_si256(is_nan, 1), values + i + 8);
  }
  decode_by_table<Format>(codes + i, count - i, values + i);
}
constexpr VectorKernels kAvx2{
    .name = "AVX2",
    .panel = Avx2Shape::kPanel,
    .pack = [](const float* b, std::int64_t count, float* packed)
                OCTOFOLD_AVX2 { pack_panels<Avx2Shape>(b, count, packed); },
    .add_block = [](const BlockProduct<float>& block)
                     OCTOFOLD_AVX2 { add_panels<Avx2Shape>(block); },
    .add_block_in_double = [](const BlockProduct<double>& block)
                               OCTOFOLD_AVX2 { add_panels<Avx2Shape>(block); },
    .decode_e4m3 = decode_avx2<E4M3>,
    .decode_e5m2 = decode_avx2<E5M2>,
    .encode_bfloat16 = [](const float* values, std::int64_t count, std::uint16_t* codes)
                           OCTOFOLD_AVX2 { encode_each<BFloat16>(values, count, codes); },
    .encode_float16 = [](const float* values, std::int64_t count, std::uint16_t* codes)
                          OCTOFOLD_AVX2 { encode_each<Float16>(values, count, codes); }};

#define OCTOFOLD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
using Avx512Shape = Shape<16, 2, 12>;

constexpr VectorKernels kAvx512{
    .name = "AVX-512",
    .panel = Avx512Shape::kPanel,
    .pack = [](const float* b, std::int64_t count, float* packed)
                OCTOFOLD_AVX512 { pack_panels<Avx512Shape>(b, count, packed); },
    .add_block = [](const BlockProduct<float>& block)
                     OCTOFOLD_AVX512 { add_panels<Avx512Shape>(block); },
    .add_block_in_double = [](const BlockProduct<double>& block)
                               OCTOFOLD_AVX512 { add_panels<Avx512Shape>(block); },
    .decode_e4m3 = decode_avx2<E4M3>,
    .decode_e5m2 = decode_avx2<E5M2>,
    .encode_bfloat16 = [](const float* values, std::int64_t count, std::uint16_t* codes)
                           OCTOFOLD_AVX512 { encode_each<BFloat16>(values, count, codes); },
    .encode_float16 = [](const float* values, std::int64_t count, std::uint16_t* codes)
                          OCTOFOLD_AVX512 { encode_each<Float16>(values, count, codes); }};

// By the instruction itself: in a library that Zig links, __builtin_cpu_supports() knows nothing.
// Registers count if the system saves them (bits 1, 2 and 5 to 7 of XCR0).
std::vector<VectorKernels> supported() {
  constexpr unsigned kOld = bit_OSXSAVE | bit_FMA | bit_F16C;
  constexpr unsigned kNew = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  constexpr unsigned kSavedYmm = 0x06, kSavedZmm = 0xE6;
  unsigned a = 0, b = 0, old = 0, d = 0, extended = 0, c = 0, saved = 0;
  if (!__get_cpuid(1, &a, &b, &old, &d) || (old & kOld) != kOld) return {kSmall};
  if (!__get_cpuid_count(7, 0, &a, &extended, &c, &d)) return {kSmall};
  asm("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  if ((extended & bit_AVX2) == 0 || (saved & kSavedYmm) != kSavedYmm) return {kSmall};
  if ((extended & kNew) != kNew || (saved & kSavedZmm) != kSavedZmm) return {kAvx2, kSmall};
  return {kAvx512, kAvx2, kSmall};
}
#else

std::vector<VectorKernels> supported() { return {kSmall}; }

#endif

// Found as the library is loaded: a process may fork amid a first product.
const std::vector<VectorKernels> kSupported = supported();

}  // namespace

std::span<const VectorKernels> all_vector_kernels() { return kSupported; }

}  // namespace octofold::cpu
