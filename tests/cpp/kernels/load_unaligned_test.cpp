// The stages as the copying warps leave them, for operands of any address, stride and K, and for
// such that consist of words: the kernel's own code, by a fiber for each lane.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "kernels/sm90/await_rows.h"
#include "kernels/sm90/load_unaligned.h"
#include "support/test.h"

namespace octofold::sm90 {
namespace {

constexpr Sm90GemmConfig config_of(config::OperandLoad load) {
  return {.form = {.a = {.scales = Granularity::kTensor}, .b = {.scales = Granularity::kTensor}},
          .tile_rows = 64,
          .tile_columns = 32,
          .consumer_warpgroups = 1,
          .stages = 12,
          .load = load,
          .store = config::OutputStore::kDirect};
}
constexpr Sm90GemmConfig kAny = config_of(config::OperandLoad::kThreads);
constexpr Sm90GemmConfig kWords = config_of(config::OperandLoad::kWords);
static_assert(kAny.invalid_reason() == nullptr && kWords.invalid_reason() == nullptr);
constexpr Sm90GemmConfig arriving(Sm90GemmConfig config) {
  config.work = config::Work::kArrivingRows;
  return config;
}
constexpr Sm90GemmConfig kArrivingAny = arriving(kAny), kArrivingWords = arriving(kWords);
static_assert(kArrivingAny.invalid_reason() == nullptr &&
              kArrivingWords.invalid_reason() == nullptr);

constexpr unsigned char kPoison = 0x7F;

// A's rows, each in its turn, to a product that runs: one shard after another, then its flag.
class LateRows {
 public:
  LateRows(const config::WorkParams& work, unsigned char* rows, int stride, std::vector<int>& flags)
      : work_(work), rows_(rows), bytes_(as_size(work.shard_rows * stride)), flags_(flags) {
    there_.assign(rows, rows + as_size(work.rows * stride));
    std::fill_n(rows, there_.size(), kPoison);
    thread_ = std::jthread([this] { copy(); });
  }

 private:
  void copy() {
    for (int i = 0; i < work_.groups; ++i) {
      const std::size_t shard = as_size((work_.first_shard + i) % work_.groups);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      std::copy_n(there_.begin() + static_cast<std::ptrdiff_t>(shard * bytes_), bytes_,
                  rows_ + shard * bytes_);
      std::atomic_ref(flags_[shard]).store(1, std::memory_order_release);
    }
  }

  const config::WorkParams& work_;
  unsigned char* rows_;
  std::size_t bytes_;
  std::vector<int>& flags_;
  std::vector<unsigned char> there_;
  std::jthread thread_;
};

// A matrix in the midst of poison.
struct Matrix {
  std::vector<unsigned char> memory;
  int rows, k, stride, offset;

  Matrix(int rows_, int k_, int padding, int offset_, std::mt19937& random)
      : memory(as_size(rows_ * (k_ + padding) + offset_ + 64), kPoison),
        rows(rows_),
        k(k_),
        stride(k_ + padding),
        offset(offset_ + 32) {
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < k; ++i) at(row, i) = static_cast<unsigned char>(random() % 0x70 + 1);
    }
  }

  unsigned char& at(int row, int i) { return memory[as_size(offset + row * stride + i)]; }

  config::OperandParams params() {
    return {.data = memory.data() + offset, .stride = stride, .scale = {}};
  }
};

template <Sm90GemmConfig kConfig>
void run_all_warps(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  for (int warp = 0; warp < 4 * kConfig.producer_warpgroups(); ++warp) {
    if (warp == 2 || warp == 3) continue;  // these copy scales
    test::launch(1, 32, [&] {
      if constexpr (kConfig.load == config::OperandLoad::kWords) {
        LoadWords<kConfig>::run(params, smem, warp);
      } else {
        LoadUnaligned<kConfig>::run(params, smem, warp);
      }
    });
  }
}

// Returns the place that the 128-byte swizzle gives a byte of a row.
unsigned swizzled(int row, int i) {
  return static_cast<unsigned>(row * 128 + ((i / 16) ^ (row % 8)) * 16 + i % 16);
}

// B lies another way than A by so many bytes.
template <Sm90GemmConfig kConfig, int kMore>
void expect_stages(int rows, int columns, int k, int padding, int offset, int shards = 0,
                   int first_shard = 0) {
  SCOPED_TRACE(testing::Message() << rows << "×" << columns << "×" << k << ", rows of "
                                  << k + padding << " bytes from " << offset << " on");
  std::mt19937 random(7);
  Matrix a(rows, k, padding, offset, random),
      b(columns, k, padding + kMore, offset + 3 * kMore, random);
  Sm90GemmParams params{};
  params.rows = a.params();
  params.columns = b.params();
  std::vector<int> flags(as_size(shards));
  params.work = {.rows = rows, .columns = columns, .depth = k};
  std::optional<LateRows> late;
  if (shards > 0) {
    params.work.groups = shards;
    params.work.numbers = flags.data();
    params.work.shard_rows = rows / shards;
    params.work.first_shard = first_shard;
    late.emplace(params.work, a.memory.data() + a.offset, a.stride, flags);
  }
  ptx::shared.fill(kPoison);
  const SharedMemory<kConfig> smem{1024};
  run_all_warps<kConfig>(params, smem);

  int stage = 0;
  for (config::TileWalk<kConfig> walk(params.work, 0, 1); walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
    for (int begin = tile.k_begin; begin < tile.k_end; begin += kStageDepth, ++stage) {
      ASSERT_LT(stage, kConfig.stages);
      const auto expect_rows = [&](Matrix& matrix, int first, int extent, unsigned base) {
        for (int row = 0; row < std::min(extent, matrix.rows - first); ++row) {
          for (int i = 0; i < kStageDepth; ++i) {
            const int expected = begin + i < k ? matrix.at(first + row, begin + i) : 0;
            ASSERT_EQ(ptx::shared[base + swizzled(row, i)], expected)
                << "stage " << stage << ", row " << row << ", byte " << i;
          }
        }
      };
      expect_rows(a, tile.row, kConfig.tile_rows, smem.rows(stage));
      expect_rows(b, tile.column, kConfig.tile_columns, smem.columns(stage));
    }
  }
  EXPECT_GT(stage, 0);
}

TEST(UnalignedCopyTest, StagesHoldTheOperandsAtAnyAddress) {
  for (int offset = 0; offset < 16; offset += 5) expect_stages<kAny, 1>(70, 33, 300, 0, offset);
  for (const int padding : {1, 2, 4, 7}) expect_stages<kAny, 1>(64, 32, 300, padding, 3);
}

TEST(UnalignedCopyTest, AnyKAndFewRows) {
  for (const int k : {1, 15, 127, 128, 129, 257, 1000}) expect_stages<kAny, 1>(5, 3, k, 0, 1);
  expect_stages<kAny, 1>(1, 1, 5, 0, 0);
  expect_stages<kAny, 1>(130, 32, 385, 1, 0);  // tiles one after another
}

TEST(WordsTest, StagesHoldTheOperandsAtMultiplesOfFourBytes) {
  for (int offset = 0; offset < 16; offset += 4) expect_stages<kWords, 4>(70, 33, 300, 0, offset);
  expect_stages<kWords, 4>(130, 32, 384, 4, 0);
  expect_stages<kWords, 4>(1, 1, 4, 0, 4);
}

TEST(UnalignedCopyTest, RowsAreReadAsTheyCome) {
  for (int first = 0; first < 3; ++first) {
    expect_stages<kArrivingAny, 1>(130 / 3 * 3, 32, 385, 1, 0, 3, first);
    expect_stages<kArrivingAny, 1>(192, 20, 300, 0, 5, 3, first);
  }
}

TEST(WordsTest, RowsAreReadAsTheyCome) {
  for (int first = 0; first < 3; ++first) {
    expect_stages<kArrivingWords, 4>(130 / 3 * 3, 32, 384, 4, 0, 3, first);
    expect_stages<kArrivingWords, 4>(192, 20, 300, 0, 4, 3, first);
  }
}

TEST(WordsTest, TheLastWordMayEndBehindK) {
  for (const int k : {1, 127, 130, 259}) expect_stages<kWords, 4>(5, 3, k, (8 - k % 4) % 8, 0);
}

}  // namespace
}  // namespace octofold::sm90
