// The operations that decode a pair of FP8 codes, counted in machine code: a thread decodes four
// words more, in one kernel of two, and all else that this adds is a load and two stores.
#include "cuda/kernel_headers.h"
#include "jit/nvrtc.h"
#include "support/nvrtc.h"
#include "support/sass.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

constexpr jit::Header kDecoder = {"kernels/decoder.h", R"(#pragma once
#include "kernels/numeric/decode_pairs.h"
namespace octofold {
enum class Way { kUnits, kValues, kBFloat16 };
template <DType kFp8, Way kWay, int kVectors>
__global__ void decoder(const uint4* x, uint4* out) {
  const auto decode = [](unsigned word, int pair) {
    if constexpr (kWay == Way::kUnits) return numeric::float16_pair_in_units<kFp8>(word, pair);
    else if constexpr (kWay == Way::kBFloat16)
      return numeric::pair_in_units<kFp8, DType::kBFloat16>(word, pair);
    else return numeric::float16_pair_of_fp8<kFp8>(word, pair);
  };
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint4 words = x[32 * i + threadIdx.x];
    out[64 * i + threadIdx.x] = {decode(words.x, 0), decode(words.x, 1), decode(words.y, 0),
                                 decode(words.y, 1)};
    out[64 * i + 32 + threadIdx.x] = {decode(words.z, 0), decode(words.z, 1), decode(words.w, 0),
                                      decode(words.w, 1)};
  }
}
}
)"};

class DecodePairsTest : public test::NvrtcGpuTest {
 protected:
  DecodePairsTest() : headers_(kernel_headers().begin(), kernel_headers().end()) {
    headers_.push_back(kDecoder);
  }

  int instructions(const std::string& format, const std::string& way, int vectors) {
    const std::string kernel = "octofold::decoder<octofold::DType::" + format +
                               ", octofold::Way::" + way + ", " + std::to_string(vectors) + ">";
    const std::string architecture = "sm_" + std::to_string(GetParam());
    const auto binary =
        jit::compile({kDecoder.name.data(), kernel, architecture, kernel}, headers_);
    return test::count_instructions(binary.image);
  }

  // Returns the number of operations that decode the eight pairs of four words.
  int operations(const std::string& format, const std::string& way) {
    return instructions(format, way, 2) - instructions(format, way, 1) - 3;
  }

  // By an instruction a pair, of either half of a word.
  bool converts() const { return GetParam() >= 89; }

  std::vector<jit::Header> headers_;
};

TEST_P(DecodePairsTest, TakesOneOperationOfE5M2) {
  EXPECT_EQ(operations("kE5M2", "kUnits"), 8);
  EXPECT_EQ(operations("kE5M2", "kValues"), 8);
}

TEST_P(DecodePairsTest, TakesFourOperationsOfE4M3AndAFifthForValues) {
  EXPECT_EQ(operations("kE4M3", "kUnits"), converts() ? 8 : 32);
  EXPECT_EQ(operations("kE4M3", "kValues"), converts() ? 8 : 40);
}

TEST_P(DecodePairsTest, TakesThreeOperationsMoreOfBFloat16) {
  EXPECT_EQ(operations("kE5M2", "kBFloat16"), 8 * 4);
  EXPECT_EQ(operations("kE4M3", "kBFloat16"), (converts() ? 8 : 32) + 8 * 3);
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, DecodePairsTest, testing::Values(75, 80, 86, 89, 90),
                         test::sm_name);

}  // namespace
}  // namespace octofold::cuda
