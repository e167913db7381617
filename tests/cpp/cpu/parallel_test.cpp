// Threads of the CPU backend, and flags of others that one of them waits for.
#include "cpu/parallel.h"

#include <sys/wait.h>
#include <unistd.h>

#include "cpu/matrix_product.h"
#include "support/test.h"

namespace octofold::cpu {
namespace {

TEST(ParallelForTest, VisitsEachItemOnce) {
  std::vector<std::atomic<int>> visits(1000);
  parallel_for(std::ssize(visits), 1 << 20,
               [&] { return [&](std::int64_t i) { ++visits[as_size(i)]; }; });
  for (const auto& count : visits) EXPECT_EQ(count, 1);
}

TEST(ParallelForTest, NothingToDoMakesNoBody) {
  bool made = false;
  parallel_for(0, 1, [&] {
    made = true;
    return [](std::int64_t) {};
  });
  EXPECT_FALSE(made);
}

TEST(ParallelForTest, SmallWorkStaysOnTheCallersThread) {
  const auto caller = std::this_thread::get_id();
  parallel_for(
      10, 10, [&] { return [&](std::int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); }; });
}

TEST(RunOnThreadsTest, RunsAsManyAsAsked) {
  std::atomic<int> running{0};
  run_on_threads(7, [&] { ++running; });
  EXPECT_EQ(running, 7);
}

TEST(RunOnThreadsTest, RethrowsWhatAnyThreadThrew) {
  std::atomic<int> calls{0};
  const auto throwing = [&] {
    ++calls;
    throw std::runtime_error("from a worker");
  };
  EXPECT_THROW(run_on_threads(4, throwing), std::runtime_error);
  EXPECT_EQ(calls, 4);
}

TEST(RunOnThreadsTest, WorksAfterFork) {
  run_on_threads(2, [] {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> running{0};
    run_on_threads(3, [&] { ++running; });
    _exit(running == 3 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ArrivalsTest, AFlagThatIsNeverSetIsAnError) {
  const std::vector<std::int32_t> flags{1, 0, -1};
  const core::Arrivals arrivals{.flags = flags.data(), .shards = 3, .most_seconds = 0.01};
  await_shard("gemm", arrivals, 0);
  await_shard("gemm", arrivals, 2);
  EXPECT_EQ(test::error_of([&] { await_shard("gemm", arrivals, 1); }, ErrorCode::kUnavailable),
            "gemm: argument 'arrivals': expected the flag of shard 1 of 3 to be set within 0.01 s, "
            "got 0 all the time");
}

}  // namespace
}  // namespace octofold::cpu
