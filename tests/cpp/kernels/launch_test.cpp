// How the host runs kernels, on which their tests rely: threads that wait for each other, in turns
// that no order is known of.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "kernels/ptx/control.h"
#include "kernels/ptx/mbarrier.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::launch;

TEST(LaunchTest, EachThreadOfEachBlockRunsOnceAndKnowsItsPlace) {
  std::mutex mutex;
  std::map<std::pair<unsigned, unsigned>, std::size_t> ranks;
  launch(
      6, 64,
      [&] {
        const std::lock_guard lock(mutex);
        EXPECT_EQ(gridDim.x, 6u);
        EXPECT_TRUE(ranks.try_emplace({blockIdx.x, threadIdx.x}, ptx::self().rank).second);
      },
      2);
  ASSERT_EQ(ranks.size(), 6u * 64);
  for (const auto& [place, rank] : ranks) EXPECT_EQ(rank, place.first % 2);
}

TEST(LaunchTest, TurnsComeInNoOrderOfThreads) {
  std::mutex mutex;
  std::vector<unsigned> turns;
  launch(1, 128, [&] {
    const std::lock_guard lock(mutex);
    turns.push_back(threadIdx.x);
  });
  EXPECT_FALSE(std::ranges::is_sorted(turns));
  EXPECT_THAT(turns, testing::UnorderedElementsAreArray([] {
                std::vector<unsigned> all(128);
                std::iota(all.begin(), all.end(), 0u);
                return all;
              }()));
}

TEST(LaunchTest, WhatIsWrittenBeforeABarrierIsThereBehindIt) {
  std::array<int, 256> of_thread{};
  std::atomic<int> wrong = 0;
  launch(1, 256, [&] {
    const unsigned other = (threadIdx.x + 97) % 256;
    for (int round = 1; round < 5; ++round) {
      of_thread[threadIdx.x] = round;
      __syncthreads();
      wrong += of_thread[other] != round;
      __syncthreads();
    }
  });
  EXPECT_EQ(wrong, 0);
}

// Half of the warps wait while the others go through more barriers of their own.
TEST(LaunchTest, SomeWaitWhileOthersGoOn) {
  int rounds = 0, seen = -1;
  launch(1, 128, [&] {
    if (threadIdx.x < 64) {
      for (int round = 0; round < 3; ++round) {
        ptx::barrier_sync(2, 64);
        if (threadIdx.x == 0) ++rounds;
      }
      ptx::barrier_arrive(1, 128);
    } else {
      ptx::barrier_sync(1, 128);
      if (threadIdx.x == 64) seen = rounds;
    }
  });
  EXPECT_EQ(seen, 3);
}

TEST(LaunchTest, ABarrierOfTransactionsOpensWithTheLastByte) {
  int seen = 0;
  launch(1, 64, [&] {
    if (threadIdx.x == 0) ptx::mbarrier_init(64, 1);
    __syncthreads();
    if (threadIdx.x < 32) {
      ptx::mbarrier_wait(64, 0);
      if (threadIdx.x == 0) seen = static_cast<int>(ptx::load_shared_word(128));
    } else if (threadIdx.x == 32) {
      ptx::mbarrier_arrive_expect_bytes(64, 4);
      test::give_way();
      ptx::store_async_at_rank(128, 0, 7, 64);
    }
  });
  EXPECT_EQ(seen, 7);
}

using LaunchDeathTest = testing::Test;

TEST(LaunchDeathTest, WhoeverWaitsInVainIsNamed) {
  EXPECT_DEATH(launch(1, 64,
                      [] {
                        if (threadIdx.x == 0) ptx::mbarrier_init(64, 2);
                        __syncthreads();
                        if (threadIdx.x == 1) ptx::mbarrier_arrive(64);
                        ptx::mbarrier_wait(64, 0);
                      }),
               "mbarrier 64 is waited for by 64");
  EXPECT_DEATH(launch(1, 64,
                      [] {
                        if (threadIdx.x < 32) __syncthreads();
                      }),
               "barrier of threads 64 is waited for by 64");
}

}  // namespace
}  // namespace octofold
