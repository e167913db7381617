// The stages as the warps that cast leave them: the kernel's own code, by a fiber for each lane,
// against cast().
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/cast.h"
#include "octofold/convert_dtype.h"

#include "kernels/sm90/load_dynamic.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold::sm90 {
namespace {

constexpr unsigned char kPoison = 0xA5;

struct Cast {
  DType type = DType::kBFloat16;
  config::CastRule rule = config::kDeepGemmRule;
  Rule library = Rule::kDeepGemm;
  DType codes = DType::kE4M3;
  bool vectors = true;
  int columns = 8;
  int blocks_per_multiprocessor = 3;
  int depth = 1;
  int stages = 6;
};

constexpr Sm90GemmConfig config_of(const Cast& cast) {
  return {.form = {.a = {.type = cast.codes}},
          .dynamic = {.exists = true,
                      .type = cast.type,
                      .rule = cast.rule,
                      .power_of_two = cast.rule.power_of_two_by_default,
                      .vectors = cast.vectors},
          .swapped = true,
          .tile_rows = 64,
          .tile_columns = cast.columns,
          .consumer_warpgroups = 1,
          .stages = cast.stages,
          .split_k = cast.depth,
          .blocks_per_multiprocessor = cast.blocks_per_multiprocessor,
          .store = config::OutputStore::kDirect};
}

// x [rows, k] within memory of its own, so many elements behind each row and before the first.
struct Input {
  test::Matrix values;
  std::vector<unsigned char> memory;
  DType type;
  std::int64_t stride, offset;

  Input(test::Random& random, DType type_, int rows, int k, int padding, int offset_)
      : values(test::random_matrix(random, rows, k)),
        memory(as_size((rows * (k + padding) + offset_) * size_of(type_) + 32), kPoison),
        type(type_),
        stride(k + padding),
        offset(offset_) {
    if (k > 130) {
      values.float_at(0, 3) = std::numeric_limits<float>::quiet_NaN();
      if (rows > 2) {
        values.float_at(2, 129) = std::numeric_limits<float>::infinity();
        for (int i = 0; i < 128; ++i) values.float_at(1, i) = 0;
      }
    }
    convert_dtype(matrix(values.data(), DType::kFloat32, rows, k), view());
  }

  // At an address that is a multiple of 16, and the offset.
  void* data() {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (16 - begin % 16) % 16 + offset * size_of(type);
  }
  MutableTensorView view() {
    return matrix<void>(data(), type, values.rows(), values.cols(), stride);
  }
};

template <Sm90GemmConfig kConfig>
void run_all_warps(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem, int rank) {
  for (int warp = 0; warp < config::kCastWarps; ++warp) {
    test::launch(1, 32, [&] {
      blockIdx.x = static_cast<unsigned>(rank);
      gridDim.x = static_cast<unsigned>(kConfig.cluster_size());
      DynamicCast<kConfig>(params, smem, warp).run();
    });
  }
}

// M rows of x in a product with `n` rows of B: as many tiles as that makes, all by one block, or by
// the cluster that shares one.
template <Cast kCast>
void check(int m, int n, int k, int padding = 0, int offset = 0) {
  SCOPED_TRACE(testing::Message() << name(kCast.type) << " " << name(kCast.library) << ", " << m
                                  << "×" << n << "×" << k << ", " << padding << " between rows");
  constexpr Sm90GemmConfig kConfig = config_of(kCast);
  static_assert(kConfig.invalid_reason() == nullptr);
  test::Random random;
  Input x(random, kCast.type, m, k, padding, offset);
  test::Matrix codes(kCast.codes, m, k), scales(DType::kFloat32, m, (k + 127) / 128);
  cast(x.view(), {.rows = CastTarget{
                      codes.view(), scales.view(), {.dtype = kCast.codes, .rule = kCast.library}}});

  Sm90GemmParams params{};
  params.columns = {.data = static_cast<unsigned char*>(x.data()), .stride = x.stride, .scale = {}};
  params.work = {.rows = n, .columns = m, .depth = k};
  int checked = 0;
  for (int rank = 0; rank < kConfig.cluster_size(); ++rank) {
    ptx::shared.fill(kPoison);
    const SharedMemory<kConfig> smem{1024};
    run_all_warps<kConfig>(params, smem, rank);
    int stage = 0;
    config::TileWalk<kConfig> walk(params.work, rank, kConfig.cluster_size());
    for (; walk.has_tile(); walk.advance()) {
      const Tile tile = walk.tile();
      for (int begin = tile.k_begin; begin < tile.k_end; begin += kStageDepth, ++stage) {
        ASSERT_LT(stage, kConfig.stages);
        for (int row = 0; row < std::min(kConfig.tile_columns, m - tile.column); ++row) {
          const auto at = [&](int i) {
            const auto place = static_cast<unsigned>(row * 128 + (i / 16 ^ row % 8) * 16 + i % 16);
            return ptx::shared[smem.columns(stage) + place];
          };
          const std::int64_t x_row = tile.column + row;
          for (int i = 0; i < kStageDepth; ++i) {
            const unsigned char expected =
                begin + i < k ? codes.bytes()[as_size(x_row * k + begin + i)] : 0;
            ASSERT_EQ(at(i), expected) << "stage " << stage << ", row " << row << ", code " << i;
          }
          constexpr config::ColumnScaleOrder kOrder(kConfig.tile_columns);
          float scale = 0;
          std::memcpy(
              &scale,
              &ptx::shared[smem.column_scales(stage) +
                           static_cast<unsigned>(4 * kOrder.place(static_cast<unsigned>(row)))],
              sizeof(scale));
          const float expected = scales.float_at(x_row, begin / 128);
          ASSERT_TRUE(std::bit_cast<unsigned>(scale) == std::bit_cast<unsigned>(expected) ||
                      (scale != scale && expected != expected))
              << "stage " << stage << ", row " << row << ": " << scale << ", " << expected;
        }
      }
    }
    checked += stage;
  }
  EXPECT_GT(checked, 0);
}

TEST(LoadDynamicTest, StagesHoldTheCastOfX) {
  constexpr Cast kBf16{}, kFp16{.type = DType::kFloat16, .columns = 16};
  constexpr Cast kFp32{.type = DType::kFloat32};
  for (const int m : {1, 5, 8}) {
    for (const int k : {128, 512, 400, 16}) {
      check<kBf16>(m, 64, k);
      check<kFp16>(m, 64, k, 24, 8);
      check<kFp32>(m, 64, k, 4);
    }
  }
}

TEST(LoadDynamicTest, TurnsOfAStageAndTilesOneAfterAnother) {
  constexpr Cast kWide{.columns = 32, .blocks_per_multiprocessor = 1, .stages = 16};
  constexpr Cast kNarrow{.columns = 32};
  constexpr Cast kOdd{.columns = 48, .blocks_per_multiprocessor = 2, .stages = 7};
  constexpr Cast kFp32{.type = DType::kFloat32, .columns = 16, .blocks_per_multiprocessor = 2};
  for (const int m : {1, 9, 17, 31, 48}) {
    check<kWide>(m, 100, 272);
    check<kNarrow>(m, 50, 272);
    check<kOdd>(m, 100, 272);
    check<kFp32>(std::min(m, 32), 50, 272);
  }
  check<kWide>(60, 100, 400);
}

TEST(LoadDynamicTest, RowsAtAnyAddress) {
  constexpr Cast kBf16{.vectors = false}, kFp16{.type = DType::kFloat16, .vectors = false};
  constexpr Cast kFp32{.type = DType::kFloat32, .vectors = false, .columns = 16};
  for (const int k : {1, 127, 129, 300}) {
    check<kBf16>(7, 64, k, 1, 3);
    check<kFp16>(8, 64, k, 2, 1);
    check<kFp32>(13, 64, k, 0, 1);
  }
}

TEST(LoadDynamicTest, SlicesOfK) {
  constexpr Cast kTwo{.columns = 16, .depth = 2}, kFour{.depth = 4};
  for (const int k : {128, 300, 512, 1300}) {
    check<kTwo>(11, 64, k - k % 8);
    check<kFour>(8, 64, k - k % 8);
  }
}

// Each rule, where a factor may be infinite or NaN, and codes of what lies beyond K still are 0.
TEST(LoadDynamicTest, EveryRule) {
  using enum Rule;
  const auto check_rule = [&]<config::CastRule kRule, Rule kLibrary>() {
    constexpr Cast kCast{.rule = kRule, .library = kLibrary};
    constexpr Cast kOther{
        .type = DType::kFloat32, .rule = kRule, .library = kLibrary, .codes = DType::kE5M2};
    check<kCast>(8, 64, 400);
    check<kOther>(8, 64, 400);
  };
  check_rule.operator()<config::kDeepGemmRule, kDeepGemm>();
  check_rule.operator()<config::kVllmRule, kVllm>();
  check_rule
      .operator()<config::repaired_in_type(config::kTransformerEngineRule), kTransformerEngine>();
  check_rule.operator()<config::kTorchAoRule, kTorchAo>();
  check_rule.operator()<config::kTorchAoTensorRule, kTorchAoTensor>();
  check_rule.operator()<config::kDeepSeekRule, kDeepSeek>();
  check_rule.operator()<config::kCompressedTensorsRule, kCompressedTensors>();
}

}  // namespace
}  // namespace octofold::sm90
