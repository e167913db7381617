// FP8 products by warpgroups, of groups and of rows that arrive too, kernel and all, run on the
// host with the parameters and tensor maps that src/cuda makes, beside sums in FP64; those that
// cast, beside the CPU backend.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include <algorithm>

#include "cuda/fake_runtime.h"
#include "cuda/params.h"
#include "kernels/sm90/kernel.h"
#include "support/gemm_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::ConsumerOrder;
using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;
using config::Work;
using test::GemmProblem;
using enum DType;
using enum Granularity;

class HopperGemmTest : public cuda::FakeGpuTest {
 protected:
  // By so many clusters, or one for each of their tiles.
  template <Sm90GemmConfig kConfig>
  void run(const core::Product& product, std::int64_t clusters = 0) {
    static_assert(kConfig.invalid_reason() == nullptr);
    constexpr config::Sm90SmemLayout kLayout(kConfig);
    const config::Sm90GemmParams params = cuda::params_of(runtime().device(0), product, kConfig);
    if (clusters == 0) {
      clusters = config::ceil_divide(params.work.rows, kConfig.cluster_tile_rows()) *
                 config::ceil_divide(params.work.columns, kConfig.cluster_tile_columns());
    }
    ptx::shared.fill(0xFF);
    test::launch(
        clusters * kConfig.cluster_size(), kConfig.threads(), [&] { gemm_kernel<kConfig>(params); },
        kConfig.cluster_size());
    EXPECT_TRUE(ptx::shared.is_filled_behind(kLayout.total, 0xFF));
  }

  template <Sm90GemmConfig kConfig>
  void expect_product(GemmProblem problem, std::int64_t clusters = 0) {
    if (kConfig.load == OperandLoad::kTma) {
      problem.padding = config::round_up(problem.k, 16) - problem.k;
    }
    if (config::by_tma(kConfig.store)) {
      problem.out_padding = config::round_up(problem.n, 8) - problem.n + 8;
    }
    test::GemmProduct<kConfig.form> product(problem);
    run<kConfig>(product.product(), clusters);
    product.expect_right();
  }

  template <Sm90GemmConfig kConfig>
  void expect_groups(const test::Groups& given) {
    test::GemmProduct<kConfig.form, kConfig.work> product(given);
    run<kConfig>(product.product(), 2);
    product.expect_right();
  }
};

TEST_F(HopperGemmTest, InTurnsByBlocksThatStay) {
  expect_product<{.tile_columns = 64, .stages = 3, .order = ConsumerOrder::kPingPong}>(
      {.m = 200, .n = 136, .k = 400}, 2);
}

TEST_F(HopperGemmTest, AheadOfTheStage) {
  expect_product<{.form = {.a = {kE5M2, kBlock1x128},
                           .b = {kE4M3, kBlock1x128},
                           .out = kFloat32,
                           .bias = Addend::kFloat32},
                  .tile_columns = 32,
                  .wait_ahead = true}>({.m = 130, .n = 40, .k = 336});
}

// Each strip of 32 columns lies in a 128x128 of B; the second tile and the third touch two.
TEST_F(HopperGemmTest, TilesThatBeginWithinABlockOfScales) {
  expect_product<{.tile_columns = 96, .stages = 2}>({.m = 128, .n = 280, .k = 272});
}

TEST_F(HopperGemmTest, SwappedAndSplit) {
  expect_product<{.swapped = true,
                  .tile_rows = 64,
                  .tile_columns = 16,
                  .consumer_warpgroups = 1,
                  .split_k = 2}>({.m = 20, .n = 144, .k = 528});
}

TEST_F(HopperGemmTest, Multicast) {
  expect_product<{.form = {.a = {kE4M3, kChannel}, .b = {kE4M3, kChannel}},
                  .tile_columns = 64,
                  .stages = 2,
                  .cluster_rows = 2}>({.m = 300, .n = 72, .k = 272});
}

TEST_F(HopperGemmTest, TwoPartialSumsInTurn) {
  expect_product<{.form = {.c = Addend::kFloat32},
                  .tile_columns = 64,
                  .store = OutputStore::kDirect,
                  .order = ConsumerOrder::kAlternating}>({.m = 128, .n = 70, .k = 656});
}

TEST_F(HopperGemmTest, OntoAPrefetchedC) {
  expect_product<{.form = {.out = kFloat32, .c = Addend::kFloat32},
                  .tile_columns = 64,
                  .stages = 3,
                  .store = OutputStore::kTmaPrefetchedC,
                  .boxes = 2}>({.m = 136, .n = 128, .k = 384}, 1);
}

TEST_F(HopperGemmTest, OfTensorScalesInTheTensorCore) {
  constexpr Sm90GemmConfig kConfig{.form = {.a = {kE4M3, kTensor},
                                            .b = {kE5M2, kTensor},
                                            .out = kFloat16,
                                            .bias = Addend::kOutputType,
                                            .fast_accumulation = true},
                                   .tile_columns = 128,
                                   .stages = 2,
                                   .store = OutputStore::kTmaSlabs};
  expect_product<kConfig>({.m = 100, .n = 152, .k = 272});
  expect_product<kConfig>({.m = 100, .n = 152, .k = 256});  // whole stages
}

// All rows at even places, and tiles of one slab and a half; every other row at an odd place;
// words.
TEST_F(HopperGemmTest, InSlabsThatWarpsCopy) {
  expect_product<{.tile_columns = 96, .stages = 2, .store = OutputStore::kSlabs}>(
      {.m = 150, .n = 133, .k = 272});
  expect_product<{.tile_columns = 128, .stages = 2, .store = OutputStore::kSlabs}>(
      {.m = 40, .n = 66, .k = 144, .out_padding = 1});
  expect_product<{.form = {.out = kFloat32, .c = Addend::kFloat32},
                  .tile_columns = 64,
                  .stages = 2,
                  .store = OutputStore::kSlabs}>({.m = 130, .n = 101, .k = 144});
}

// D is C: what the last slab of a tile wrote too much, the next tile would add to.
TEST_F(HopperGemmTest, CopiedSlabsEndWithTheirTile) {
  constexpr Sm90GemmConfig kConfig{.form = {.out = kFloat32, .c = Addend::kFloat32},
                                   .tile_columns = 48,
                                   .stages = 2,
                                   .store = OutputStore::kSlabs};
  test::GemmProduct<kConfig.form> problem({.m = 130, .n = 101, .k = 144, .padding = 0});
  core::Product product = problem.product();
  for (std::int64_t row = 0; row < product.out.shape[0]; ++row) {
    std::copy_n(static_cast<const float*>(product.c->data) + row * product.c->strides[0],
                product.out.shape[1],
                static_cast<float*>(product.out.data) + row * product.out.strides[0]);
  }
  product.c = product.out;
  run<kConfig>(product);
  problem.expect_right();
}

// Rows that TMA cannot address: by bytes at any address, and by words.
constexpr Sm90GemmConfig by_threads(OperandLoad load, Work work = Work::kDense) {
  return {.form = {.out = kFloat32},
          .work = work,
          .tile_rows = 64,
          .tile_columns = 32,
          .consumer_warpgroups = 1,
          .stages = load == OperandLoad::kWords ? 3 : 2,
          .load = load,
          .store = OutputStore::kDirect};
}

TEST_F(HopperGemmTest, BytesAtAnyAddress) {
  const auto expect = [&](const GemmProblem& problem) {
    expect_product<by_threads(OperandLoad::kThreads)>(problem);
  };
  for (const int offset : {0, 5, 10, 15}) {
    expect({.m = 70, .n = 33, .k = 300, .offset = offset, .padding = 0, .apart = 1});
  }
  for (const int padding : {1, 2, 7}) {
    expect({.m = 64, .n = 32, .k = 300, .offset = 3, .padding = padding, .apart = 1});
  }
  for (const int k : {1, 15, 127, 128, 129, 257, 1000}) {
    expect({.m = 5, .n = 3, .k = k, .offset = 1, .padding = 0, .apart = 1});
  }
  expect({.m = 130, .n = 33, .k = 385, .padding = 1});
}

// The last word of a row may end behind K.
TEST_F(HopperGemmTest, WordsAtMultiplesOfFourBytes) {
  const auto expect = [&](const GemmProblem& problem) {
    expect_product<by_threads(OperandLoad::kWords)>(problem);
  };
  for (const int offset : {0, 4, 8, 12}) {
    expect({.m = 70, .n = 33, .k = 300, .offset = offset, .padding = 0, .apart = 4});
  }
  for (const int k : {1, 4, 127, 130, 259}) {
    expect({.m = 5, .n = 3, .k = k, .padding = (8 - k % 4) % 8, .apart = 4});
  }
  expect({.m = 130, .n = 33, .k = 384, .padding = 4});
}

// A's rows, to a product that runs: they are NaN until they come, one shard after another, each
// before its flag.
class LateRows {
 public:
  LateRows(test::Matrix& rows, int shards, int first)
      : flags_(as_size(shards)), there_(rows), rows_(rows) {
    rows_.fill([] { return NAN; });
    thread_ = std::jthread([this, first] { copy(first); });
  }
  const int* flags() const { return flags_.data(); }

 private:
  void copy(int first) {
    const auto bytes = rows_.rows() / std::ssize(flags_) * rows_.view().strides[0];
    for (std::size_t i = 0; i < flags_.size(); ++i) {
      const std::size_t shard = (as_size(first) + i) % flags_.size();
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      const auto place = static_cast<std::int64_t>(shard) * bytes;
      std::copy_n(there_.data() + place, bytes, rows_.data() + place);
      std::atomic_ref(flags_[shard]).store(1, std::memory_order_release);
    }
  }

  std::vector<int> flags_;
  const test::Matrix there_;
  test::Matrix& rows_;
  std::jthread thread_;
};

TEST_F(HopperGemmTest, RowsAreReadAsTheyCome) {
  const auto expect = [&]<Sm90GemmConfig kConfig>(const GemmProblem& problem) {
    for (int first = 0; first < 3; ++first) {
      test::GemmProduct<kConfig.form, kConfig.work> product(problem);
      const LateRows late(product.codes_of_a(), 3, first);
      core::Product arriving = product.product();
      arriving.arrivals = core::Arrivals{.flags = late.flags(), .shards = 3, .own = first};
      run<kConfig>(arriving, 2);
      product.expect_right();
    }
  };
  constexpr Work kArriving = Work::kArrivingRows;
  expect.operator()<by_threads(OperandLoad::kThreads, kArriving)>(
      {.m = 129, .n = 32, .k = 385, .padding = 1});
  expect.operator()<by_threads(OperandLoad::kWords, kArriving)>(
      {.m = 192, .n = 20, .k = 300, .offset = 4, .padding = 0});
  expect.operator()<Sm90GemmConfig{.work = kArriving, .tile_columns = 64, .stages = 3}>(
      {.m = 291, .n = 72, .k = 272, .padding = 0, .out_padding = 8});
}

TEST_F(HopperGemmTest, GroupsOfRowsOneAfterAnother) {
  expect_groups<{.work = Work::kGroupedRows, .stages = 2}>(
      {.sizes = {70, 0, 1, 150, 3}, .room = 240, .n = 128, .k = 272});
}

// A block has more tiles, of one stage each, than the producer may be ahead of its consumers.
TEST_F(HopperGemmTest, MoreTilesThanArePassedAtOneTime) {
  expect_groups<{.work = Work::kGroupedRows,
                 .tile_rows = 64,
                 .tile_columns = 64,
                 .consumer_warpgroups = 1,
                 .stages = 12,
                 .wait_ahead = true}>(
      {.sizes = {1, 2, 0, 1, 70, 1}, .room = 80, .n = 256, .k = 16});
}

TEST_F(HopperGemmTest, MaskedRowsSwapped) {
  expect_groups<{.form = {.b = {kE4M3, kBlock1x128}},
                 .work = Work::kMaskedRows,
                 .swapped = true,
                 .tile_rows = 64,
                 .tile_columns = 16,
                 .consumer_warpgroups = 1,
                 .stages = 3}>({.sizes = {5, 0, 20}, .room = 24, .n = 72, .k = 144});
}

TEST_F(HopperGemmTest, GroupsOfTheDepth) {
  constexpr Sm90GemmConfig kConfig{.form = {.b = {kE5M2, kBlock1x128}, .out = kFloat32},
                                   .work = Work::kGroupedDepth,
                                   .tile_columns = 64};
  expect_groups<kConfig>({.sizes = {100, 0, 300, 128}, .m = 136, .n = 40});
  expect_groups<kConfig>(
      {.sizes = {128, 0, 384, 0}, .m = 136, .n = 40, .layout = GroupLayout::kTight});
}

// ---- Gated ones.

constexpr int kColumns = 256;  // of H

constexpr Sm90GemmConfig gated(Activation activation, DType out, const config::CastRule& rule,
                               Work work = Work::kDense) {
  return {.form = {.out = out},
          .gated = {.exists = true, .activation = activation, .rule = rule},
          .work = work,
          .stages = 2};
}

class HopperGatedGemmTest : public HopperGemmTest {
 protected:
  template <Sm90GemmConfig kConfig>
  void expect_gated(const auto& problem, std::int64_t clusters = 0) {
    test::GemmProduct<GemmForm{}, kConfig.work> product(problem);
    test::expect_gated_as_on_cpu(product.product(), kConfig.form.out, kColumns, kConfig.gated,
                                 [&](const auto& given) { run<kConfig>(given, clusters); });
  }
  template <Sm90GemmConfig kConfig>
  void expect_rows(int m) {
    SCOPED_TRACE(m);
    expect_gated<kConfig>(GemmProblem{
        .m = m, .n = 2 * kColumns, .k = 144, .padding = 0, .out_padding = 0, .exact = true});
  }
};

TEST_F(HopperGatedGemmTest, IsTheCastOfTheActivation) {
  using enum Activation;
  for (const int m : {1, 64, 165}) expect_rows<gated(kSwiGlu, kE4M3, config::kDeepGemmRule)>(m);
  expect_rows<gated(kGeGluTanh, kE5M2, config::kDeepSeekRule)>(70);
  expect_rows<gated(kGeGluErf, kE4M3, config::kTorchAoRule)>(127);
  expect_rows<gated(kSwiGluOss, kE4M3, config::kDeepGemmRule)>(37);
  expect_rows<gated(kSwiGlu, kE5M2, config::kCompressedTensorsRule)>(16);
}

// The tile of a cluster's second block lies outside of H.
TEST_F(HopperGatedGemmTest, OfAClusterBeyondTheRows) {
  constexpr Sm90GemmConfig kConfig = [] {
    Sm90GemmConfig config = gated(Activation::kSwiGlu, kE4M3, config::kDeepGemmRule);
    config.cluster_rows = 2;
    return config;
  }();
  expect_rows<kConfig>(100);
}

// The last rows are of no group.
TEST_F(HopperGatedGemmTest, OfGroups) {
  constexpr auto kConfig =
      gated(Activation::kSwiGlu, kE4M3, config::kDeepGemmRule, Work::kGroupedRows);
  expect_gated<kConfig>(
      test::Groups{.sizes = {34, 0, 1, 17}, .room = 55, .n = 2 * kColumns, .k = 144, .exact = true},
      2);
}

// ---- Those that cast their A.

struct Cast {
  DType type = kBFloat16;
  config::CastRule rule = config::kDeepGemmRule;
  DType codes = kE4M3;
  bool vectors = true;
  int columns = 8;
  int blocks_per_multiprocessor = 3;
  int depth = 1;
  int stages = 6;
};

constexpr Sm90GemmConfig casting(const Cast& cast) {
  return {.form = {.a = {.type = cast.codes}, .out = kFloat32},
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
          .store = OutputStore::kDirect};
}

class HopperCastGemmTest : public HopperGemmTest {
 protected:
  // B is the identity: D is the cast of A itself, to the bit.
  template <Cast kCast>
  void expect_cast(int m, int k, int padding = 0, int offset = 0) {
    SCOPED_TRACE(testing::Message() << m << "×" << k << ", " << padding << " between rows");
    constexpr Sm90GemmConfig kConfig = casting(kCast);
    test::Random random;
    std::normal_distribution<float> normal;
    test::Matrix x(kCast.type, m, k, padding, offset);
    x.fill([&] { return std::ldexp(normal(random), static_cast<int>(random() % 7)); });
    if (k > 130) {
      x.set(0, 3, NAN);
      if (m > 2) x.set(2, 129, HUGE_VALF);
      for (int i = 0; i < 128 && m > 1; ++i) x.set(1, i, 0);
    }
    test::Matrix b(kE4M3, k, k, config::round_up(k, 16) - k), out(kFloat32, m, k);
    b.fill([] { return 0.0f; });
    for (int i = 0; i < k; ++i) b.set(i, i, 1);
    const int blocks = config::ceil_divide(k, 128);
    test::Matrix ones(kFloat32, blocks, blocks), expected = out;
    ones.fill([] { return 1.0f; });
    core::Product product{
        .a = {x.view(), {}, kBlock1x128},
        .b = {b.view(), ones.view(), kBlock128x128},
        .out = out.view(),
        .cast_a = config::CastFormat{.in = kCast.type,
                                     .out = kCast.codes,
                                     .rule = kCast.rule,
                                     .power_of_two = kConfig.dynamic.power_of_two}};
    run<kConfig>(product, kCast.depth > 1 ? 0 : 1);
    product.out = expected.view();
    cpu::multiply(product);
    for (int row = 0; row < m; ++row) {
      for (int column = 0; column < k; ++column) {
        const double actual = out.at(row, column), wanted = expected.at(row, column);
        ASSERT_TRUE(actual == wanted || (std::isnan(actual) && std::isnan(wanted)))
            << row << ", " << column << ": " << actual << ", " << wanted;
      }
    }
  }
};

TEST_F(HopperCastGemmTest, StagesHoldTheCast) {
  for (const int m : {1, 5, 8}) {
    for (const int k : {512, 400, 16}) {
      expect_cast<Cast{}>(m, k);
      expect_cast<Cast{.type = kFloat16, .columns = 16}>(m, k, 24, 8);
      expect_cast<Cast{.type = kFloat32}>(m, k, 4);
    }
  }
}

TEST_F(HopperCastGemmTest, TurnsOfAStageAndTilesOneAfterAnother) {
  for (const int m : {9, 31, 60}) {
    expect_cast<Cast{.columns = 32, .blocks_per_multiprocessor = 1, .stages = 16}>(m, 272);
    expect_cast<Cast{.columns = 48, .blocks_per_multiprocessor = 2, .stages = 7}>(m, 272);
    expect_cast<Cast{.type = kFloat32, .columns = 16, .blocks_per_multiprocessor = 2}>(m, 272);
  }
}

TEST_F(HopperCastGemmTest, RowsAtAnyAddress) {
  for (const int k : {1, 127, 129, 300}) {
    expect_cast<Cast{.vectors = false}>(7, k, 1, 3);
    expect_cast<Cast{.type = kFloat16, .vectors = false}>(8, k, 2, 1);
    expect_cast<Cast{.type = kFloat32, .vectors = false, .columns = 16}>(13, k, 0, 1);
  }
}

TEST_F(HopperCastGemmTest, SlicesOfK) {
  for (const int k : {128, 296, 512, 1296}) {
    expect_cast<Cast{.columns = 16, .depth = 2}>(11, k);
    expect_cast<Cast{.depth = 4}>(8, k);
  }
}

// A factor may be infinite or NaN, and codes of what lies beyond K still are 0.
TEST_F(HopperCastGemmTest, EveryRule) {
  const auto expect = [&]<config::CastRule... kRules>() {
    (expect_cast<Cast{.rule = kRules}>(8, 400), ...);
    (expect_cast<Cast{.type = kFloat32, .rule = kRules, .codes = kE5M2}>(8, 400), ...);
  };
  expect.operator()<config::kVllmRule, config::repaired_in_type(config::kTransformerEngineRule),
                    config::kTorchAoRule, config::kTorchAoTensorRule, config::kDeepSeekRule,
                    config::kCompressedTensorsRule>();
}

}  // namespace
}  // namespace octofold
