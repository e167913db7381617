// Kernels are tried in calls that are made anyway, by a clock that launches of the fake driver
// move.
#include "cuda/trials.h"

#include <cstdlib>
#include <fmt/ranges.h>

#include "core/file.h"
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "cuda/tuning_file.h"
#include "support/gpu_product.h"
#include "support/log.h"
#include "support/test.h"
#include "support/test_folder.h"

namespace octofold::cuda {
namespace {

class TrialsTest : public FakeGpuTest {
 protected:
  // The kernels that so many calls take, of which each takes its microseconds.
  std::vector<std::size_t> calls(std::size_t count, std::vector<float> microseconds = {}) {
    std::vector<std::size_t> kernels;
    for (std::size_t i = 0; i < count; ++i) {
      const auto [kernel, call] = trials_.next({});
      kernels.push_back(kernel);
      const auto launch = [&] { state().microseconds += microseconds.at(i); };
      if (call != nullptr) trials_.record(*call, {}, launch);
    }
    return kernels;
  }

  Device& device_ = runtime().device(0);
  Trials trials_{device_.driver(), device_.context(), 3};
};

TEST_F(TrialsTest, TheLeastOfThreeTimesDecides) {
  EXPECT_THAT(calls(9, {50, 29, 28, 27, 29, 40, 50, 29, 28}),
              ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
  EXPECT_EQ(trials_.fastest(), std::nullopt);
  EXPECT_THAT(calls(2), ElementsAre(0, 0));
  EXPECT_EQ(trials_.fastest(), 0u);
  EXPECT_NEAR(trials_.microseconds(0), 27, 1e-3);
  EXPECT_NEAR(trials_.microseconds(2), 28, 1e-3);
  EXPECT_EQ(state().events, 0);
}

TEST_F(TrialsTest, AnotherHasToGain) {
  const auto fastest = [&](float first, float second) {
    Trials trials(device_.driver(), device_.context(), 2);
    for (std::size_t i = 0; i < 2 * Trials::kRounds; ++i) {
      const Trials::Turn turn = trials.next({});
      trials.record(*turn.call, {}, [&] { state().microseconds += i % 2 == 0 ? first : second; });
    }
    return trials.next({}).kernel;
  };
  EXPECT_EQ(fastest(100, 95), 1u);
  EXPECT_EQ(fastest(100, 96.5f), 0u) << "3.5 us";
  EXPECT_EQ(fastest(1000, 980), 0u) << "2 %";
  EXPECT_EQ(fastest(1000, 960), 1u);
}

TEST_F(TrialsTest, NobodyWaits) {
  state().events_have_come = false;
  calls(9, {30, 29, 18, 30, 29, 18, 30, 29, 18});
  EXPECT_THAT(calls(3), ElementsAre(0, 0, 0));
  EXPECT_EQ(state().synchronizations, 0);
  state().events_have_come = true;
  EXPECT_THAT(calls(2), ElementsAre(2, 2));
}

TEST_F(TrialsTest, GraphsTakeTheFirst) {
  state().is_capturing = true;
  EXPECT_THAT(calls(2), ElementsAre(0, 0));
  state().is_capturing = false;
  EXPECT_THAT(calls(2, {1, 1}), ElementsAre(0, 1));
}

TEST_F(TrialsTest, ACallThatFailedLeavesTheFirst) {
  const Trials::Turn turn = trials_.next({});
  EXPECT_THROW(trials_.record(*turn.call, {}, [] { throw Error(ErrorCode::kUnavailable, ""); }),
               Error);
  calls(8, {9, 8, 10, 9, 8, 10, 9, 8});
  EXPECT_THAT(calls(3), ElementsAre(0, 0, 0));
}

// The process reads OCTOFOLD_TUNING once: these are processes of their own.
class AutomaticTuningTest : public FakeGpuTest {
 protected:
  AutomaticTuningTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // The kernels of so many calls, told apart by how they are launched.
  auto kernels_of(Runtime& runtime, int count) {
    state().launches.clear();
    for (int i = 0; i < count; ++i) multiply(runtime.device(0), test::product(300, 512, 640), {});
    std::vector<std::tuple<unsigned, unsigned, unsigned, unsigned>> kernels;
    for (const fake::Launch& each : state().launches) {
      kernels.emplace_back(each.blocks, each.threads, each.cluster, each.shared_bytes);
    }
    return kernels;
  }

  // Ends the process: 0 if a product tries four kernels, keeps the third, and later processes
  // follow the table.
  [[noreturn]] void try_kernels() {
    const test::TestFolder folder;
    const test::Log logged;
    setenv("OCTOFOLD_TUNING", "auto", 1);
    setenv("OCTOFOLD_CACHE_DIR", (folder / "cache").c_str(), 1);
    state().launch_microseconds = {30, 29, 15, 32};
    const auto kernels = kernels_of(runtime(), 16);
    const std::set tried(kernels.begin(), kernels.begin() + 12);
    const bool is_kept = std::all_of(kernels.begin() + 12, kernels.end(),
                                     [&](const auto& each) { return each == kernels[2]; });
    const plan::Gpu& gpu = runtime().device(0).gpu();
    const TuningFile table = read_tuning(gpu, "NVIDIA Fake");
    Runtime later(OCTOFOLD_FAKE_DRIVER, {.compile = [](const jit::Program& program) {
                    return jit::Binary{.symbol = program.kernel, .image = {'c'}, .resources = {}};
                  }});
    const bool is_followed = kernels_of(later, 1).front() == kernels[2];
    fmt::print(stderr, "{}\n", fmt::join(logged.messages, "\n"));
    std::exit(tried.size() < 3 || !is_kept || table.tuning.size() != 1 ? 1 : is_followed ? 0 : 2);
  }
};

TEST_F(AutomaticTuningTest, TheFastestIsTakenAndKept) {
  EXPECT_EXIT(try_kernels(), testing::ExitedWithCode(0),
              "m 300, n 512, k 640, .* takes 15.0 us, .* as planned 30.0");
}

}  // namespace
}  // namespace octofold::cuda
