// octofold::cast_many on the CPU: the bytes of cast(), and what is refused.
#include "octofold/cast.h"
#include "octofold/octofold.h"

#include "support/error_of.h"
#include "support/granularities.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Matrix;

TEST(CastManyTest, AreTheCastsOfEach) {
  std::mt19937 random{test::Random()()};
  const Matrix first = test::random_matrix(random, 150, 200, 3),
               second = test::random_matrix(random, 256, 128, 0);
  for (const Granularity granularity : test::kGranularities) {
    const Format format{.granularity = granularity};
    ScaledMatrix rows(150, 200, format), transposed(200, 150, format), other(256, 128, format);
    ScaledMatrix rows_alone(150, 200, format), transposed_alone(200, 150, format),
        other_alone(256, 128, format);
    cast_many(std::vector<CastJob>{
        {first.view(), {.rows = rows.target(), .transposed = transposed.target()}},
        {second.view(), {.rows = other.target()}}});
    cast(first.view(), {.rows = rows_alone.target(), .transposed = transposed_alone.target()});
    cast(second.view(), {.rows = other_alone.target()});
    for (const auto& [many, alone] :
         {std::pair{&rows, &rows_alone}, std::pair{&transposed, &transposed_alone},
          std::pair{&other, &other_alone}}) {
      EXPECT_THAT(many->codes(), testing::ElementsAreArray(alone->codes()));
      EXPECT_THAT(many->scales(), testing::ElementsAreArray(alone->scales()));
    }
  }
}

TEST(CastManyTest, NothingIsNothing) { cast_many({}); }

// By its number, and before anything is written.
TEST(CastManyTest, SaysWhichJobIsWrong) {
  std::mt19937 random{test::Random()()};
  const Matrix x = test::random_matrix(random, 64, 128, 0);
  const Format format{.granularity = Granularity::kBlock1x128};
  ScaledMatrix first(64, 128, format), second(64, 129, format);
  const std::vector<std::uint8_t> before(first.codes().begin(), first.codes().end());
  const std::string error = test::error_of([&] {
    cast_many(std::vector<CastJob>{{x.view(), {.rows = first.target()}},
                                   {x.view(), {.rows = second.target()}}});
  });
  EXPECT_THAT(error, testing::HasSubstr("cast_many: job 1: argument 'out.rows': expected shape"));
  EXPECT_THAT(first.codes(), testing::ElementsAreArray(before));
  const CastJob job{x.view(), {.rows = first.target()}};
  EXPECT_THAT(test::error_of([&] { cast_many(std::vector{job, job}); }),
              testing::HasSubstr(" of job 1': expected memory of its own, apart from 'out.rows"));
  EXPECT_THAT(test::error_of([&] { cast_many(std::vector<CastJob>{{x.view(), {}}}); }),
              testing::HasSubstr("cast_many: job 0: argument 'out'"));
}

}  // namespace
}  // namespace octofold
