// Products whose rows of A arrive while they run, on the CPU: bits, order, and what is refused.
#include "octofold/octofold.h"

#include "support/granularities.h"
#include "support/refusals.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;

struct Problem {
  static constexpr std::int64_t kN = 200, kK = 300;
  std::int64_t m;
  ScaledMatrix a, b;
  std::vector<float> out;
  std::vector<std::int32_t> flags;
  test::Random random;

  Problem(std::int64_t m_, std::int64_t shards, Granularity of_a = Granularity::kBlock1x128)
      : m(m_),
        a(m_, kK, {.granularity = of_a}),
        b(kN, kK, {.granularity = Granularity::kBlock128x128}),
        out(as_size(m_ * kN), std::nanf("")),
        flags(as_size(shards), 1) {
    fill(m, a);
    fill(kN, b);
  }

  void fill(std::int64_t rows, ScaledMatrix& matrix) {
    std::normal_distribution<float> normal;
    std::vector<float> values(as_size(rows * kK));
    for (float& value : values) value = normal(random);
    cast(octofold::matrix(values.data(), DType::kFloat32, rows, kK), {.rows = matrix.target()});
  }

  GemmArguments arguments(std::int64_t own = 0) {
    return {.a = a.view(),
            .b = b.view(),
            .out = matrix(out.data(), DType::kFloat32, m, kN),
            .arrivals = Arrivals{
                vector(flags.data(), DType::kInt32, static_cast<std::int64_t>(flags.size())), own}};
  }

  std::vector<float> whole() {
    std::vector<float> whole(out.size(), std::nanf(""));
    gemm({.a = a.view(), .b = b.view(), .out = matrix(whole.data(), DType::kFloat32, m, kN)});
    return whole;
  }
};

TEST(ArrivalsTest, ResultsHaveTheSameBits) {
  for (const Granularity granularity : test::kGranularities) {
    for (const auto& [rows, shards] : {std::pair{1, 1}, {384, 3}, {640, 5}, {512, 2}, {1300, 4}}) {
      if (granularity == Granularity::kBlock128x128 && rows / shards % 128 != 0 && shards > 1) {
        continue;
      }
      Problem problem(rows, shards, granularity);
      const std::vector<float> whole = problem.whole();
      for (std::int64_t own = 0; own < shards; ++own) {
        std::ranges::fill(problem.out, std::nanf(""));
        gemm(problem.arguments(own));
        ASSERT_EQ(problem.out, whole) << name(granularity) << ", " << rows << " rows in " << shards
                                      << " shards, from " << own;
      }
    }
  }
}

// Shards come late, one after another, into memory that holds NaN: read before, they would show.
TEST(ArrivalsTest, NothingIsReadOfAShardBeforeItsFlag) {
  constexpr std::int64_t kShards = 4;
  for (const std::int64_t rows : {512, 1000}) {
    for (const std::int64_t own : {0, 2}) {
      Problem problem(rows, kShards);
      const std::vector<float> whole = problem.whole();
      const std::vector<std::uint8_t> codes(problem.a.codes().begin(), problem.a.codes().end());
      const std::vector<float> scales(problem.a.scales().begin(), problem.a.scales().end());
      std::ranges::fill(problem.a.codes(), std::uint8_t{0xFF});
      std::ranges::fill(problem.a.scales(), std::nanf(""));
      std::ranges::fill(problem.flags, 0);
      const std::jthread copies([&] {
        for (std::int64_t i = 0; i < kShards; ++i) {
          const std::int64_t shard = (own + i) % kShards;
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          const auto copy = [&](const auto& from, auto to) {
            const std::size_t size = from.size() / kShards, first = as_size(shard) * size;
            std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(first), size,
                        to.subspan(first).begin());
          };
          copy(codes, problem.a.codes());
          copy(scales, problem.a.scales());
          std::atomic_ref(problem.flags[as_size(shard)]).store(1, std::memory_order_release);
        }
      });
      gemm(problem.arguments(own));
      EXPECT_EQ(problem.out, whole);
    }
  }
}

const auto refuse = test::refusing<Problem, GemmArguments>([](auto&& spoil) {
  Problem problem(12, 3);
  GemmArguments arguments = problem.arguments();
  spoil(problem, arguments);
  return error_of([&] { gemm(arguments); });
});

TEST(ArrivalsTest, EachErrorNamesItsArgument) {
  refuse({
      {[](auto&, auto& g) { g.arrivals->own = 3; },
       "gemm: argument 'arrivals.own': expected the number of one of 3 shards, got 3"},
      {[](auto&, auto& g) { g.arrivals->own = -1; }, "argument 'arrivals.own': expected"},
      {[](auto&, auto& g) { g.arrivals->flags.dtype = DType::kFloat32; },
       "argument 'arrivals.flags': expected dtype int32, got float32"},
      {[](auto& p, auto& g) { g.arrivals->flags = matrix(p.flags.data(), DType::kInt32, 3, 1); },
       "argument 'arrivals.flags': expected a vector"},
      {[](auto&, auto& g) { g.arrivals->flags.shape[0] = 0; },
       "argument 'arrivals.flags': expected as many as divide 12 rows of 'a', got 0"},
      {[](auto& p, auto& g) {
         p.flags.resize(5);
         g.arrivals->flags = vector(p.flags.data(), DType::kInt32, 5);
       },
       "argument 'arrivals.flags': expected as many as divide 12 rows of 'a', got 5"},
      {[](auto&, auto& g) { g.arrivals->flags.device = {DeviceType::kCuda, 0}; },
       "argument 'arrivals.flags': expected a tensor on cpu, got one on cuda:0"},
      {[](auto& p, auto& g) { g.arrivals->flags.data = p.out.data(); },
       "argument 'out': expected memory of its own, apart from 'arrivals.flags'"},
      {[](auto& p, auto& g) {
         g.a = CastOperand{.data = matrix(p.out.data(), DType::kFloat32, 12, p.kK, 0)};
       },
       "argument 'arrivals': expected none beside an 'a' that is cast"},
  });
  Problem squares(300, 3, Granularity::kBlock128x128);
  EXPECT_THAT(error_of([&] { gemm(squares.arguments()); }),
              HasSubstr("argument 'arrivals.flags': expected shards of a multiple of 128 rows, for "
                        "128x128 scales of 'a', got 3 of 100"));
}

}  // namespace
}  // namespace octofold
