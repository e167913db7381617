// Kernels are tried in calls that are made anyway, by a clock that launches of the fake driver
// move.
#include "cuda/trials.h"

#include <cstdlib>
#include <filesystem>
#include <fmt/ranges.h>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/file.h"
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "cuda/tuning_file.h"
#include "plan/problem_text.h"
#include "support/gpu_product.h"
#include "support/log.h"
#include "support/test.h"
#include "support/test_folder.h"

namespace octofold::cuda {
namespace {

namespace fs = std::filesystem;

class TrialsTest : public FakeGpuTest {
 protected:
  using Kernels = std::vector<std::size_t>;

  // The kernels that so many calls take, of which each takes its microseconds.
  Kernels calls(std::size_t count, std::vector<float> microseconds = {}) {
    Kernels kernels;
    for (std::size_t i = 0; i < count; ++i) {
      const auto [kernel, call] = trials_.next({});
      kernels.push_back(kernel);
      const auto launch = [&] { state().microseconds += microseconds.at(i); };
      if (call != nullptr) trials_.record(*call, {}, launch);
    }
    return kernels;
  }

  // The kernel that is taken where all calls of each take so long.
  std::size_t taken(std::vector<float> microseconds) {
    Trials trials(device_.driver(), device_.context(), microseconds.size());
    for (Trials::Turn turn = trials.next({}); turn.call != nullptr; turn = trials.next({})) {
      trials.record(*turn.call, {}, [&] { state().microseconds += microseconds[turn.kernel]; });
    }
    return trials.next({}).kernel;
  }

  Device& device_ = runtime().device(0);
  Trials trials_{device_.driver(), device_.context(), 3};
};

TEST_F(TrialsTest, TheLeastTimeDecidesButOfTheFirstRound) {
  EXPECT_THAT(calls(12, {90, 9, 90, 22, 28, 36, 30, 39, 23, 38, 21, 31}),
              ElementsAre(0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2));
  EXPECT_EQ(trials_.fastest(), std::nullopt);
  EXPECT_THAT(calls(2), ElementsAre(1, 1));
  EXPECT_NEAR(trials_.times(0).least, 36, 1e-3);
  EXPECT_NEAR(trials_.times(1).least, 21, 1e-3);
  EXPECT_NEAR(trials_.times(1).most, 23, 1e-3);
  EXPECT_EQ(state().events, 0);
}

TEST_F(TrialsTest, AnotherHasToGainEachTime) {
  EXPECT_EQ(taken({100, 95}), 1u);
  EXPECT_EQ(taken({100, 96.5f}), 0u) << "3.5 us";
  EXPECT_EQ(taken({1000, 980}), 0u) << "2 %";
  EXPECT_EQ(taken({1000, 960}), 1u);
  calls(12, {90, 90, 90, 20, 40, 40, 40, 40, 39, 40, 20, 40});
  EXPECT_THAT(calls(1), ElementsAre(0)) << "39 us once";
}

TEST_F(TrialsTest, NobodyWaits) {
  state().events_have_come = false;
  calls(12, std::vector<float>(12, 30));
  EXPECT_THAT(calls(3), ElementsAre(0, 0, 0));
  EXPECT_EQ(trials_.fastest(), std::nullopt);
  EXPECT_EQ(state().synchronizations, 0);
  state().events_have_come = true;
  calls(1);
  EXPECT_EQ(trials_.fastest(), 0u);
}

TEST_F(TrialsTest, GraphsTakeTheFirst) {
  state().is_capturing = true;
  EXPECT_THAT(calls(2), ElementsAre(0, 0));
  state().is_capturing = false;
  EXPECT_THAT(calls(2, {1, 1}), ElementsAre(0, 1));
}

TEST_F(TrialsTest, ACallThatFailedHasNoTime) {
  const std::vector<float> alike{30, 20, 40};
  for (Trials::Turn turn = trials_.next({}); turn.call != nullptr; turn = trials_.next({})) {
    if (turn.kernel == 0) {
      Trials::fail(*turn.call);
    } else {
      trials_.record(*turn.call, {}, [&] { state().microseconds += alike[turn.kernel]; });
    }
  }
  EXPECT_EQ(trials_.fastest(), 0u) << "which has no time to be compared with";
  EXPECT_EQ(state().events, 0);
}

// The process reads OCTOFOLD_TUNING once: these are processes of their own.
class AutomaticTuningTest : public FakeGpuTest {
 protected:
  AutomaticTuningTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // The kernels of so many calls, told apart by how they are launched.
  auto kernels_of(Runtime& runtime, int count, std::int64_t m = 300) {
    state().launches.clear();
    for (int i = 0; i < count; ++i) multiply(runtime.device(0), test::product(m, 512, 640), {});
    std::vector<std::tuple<unsigned, unsigned, unsigned, unsigned>> kernels;
    for (const fake::Launch& each : state().launches) {
      kernels.emplace_back(each.blocks, each.threads, each.cluster, each.shared_bytes);
    }
    return kernels;
  }

  // Runs it in a process of its own, with a folder of its own; what it logs is its error output.
  void in_own_process(auto&& test) {
    setenv("OCTOFOLD_TUNING", "auto", 1);
    setenv("OCTOFOLD_CACHE_DIR", (folder_ / "cache").c_str(), 1);
    state().launch_microseconds = {30, 29, 15, 32, 29, 15, 32, 30, 15, 32, 30, 29, 32, 30, 29, 15};
    const test::Log logged;
    test();
    fmt::print(stderr, "{}\n", fmt::join(logged.messages, "\n"));
    std::exit(HasFailure() ? 1 : 0);
  }

  // 16 calls, which make the third of four kernels the fastest, and the last of four more.
  auto fastest_of(
      Runtime& runtime, std::int64_t m = 300, const std::function<void()>& meanwhile = [] {}) {
    const auto tried = kernels_of(runtime, 16, m);
    EXPECT_GE(std::set(tried.begin(), tried.end()).size(), 3u);
    meanwhile();
    const auto after = kernels_of(runtime, 4, m);
    EXPECT_THAT(after, testing::Each(tried[2]));
    return after.back();
  }

  fs::path table() const { return folder_ / "cache" / "tuning" / "NVIDIA_Fake.json"; }
  std::string text_of_table() const { return core::File::open_for_reading(table()).read_text(); }

  const test::TestFolder folder_;
};

TEST_F(AutomaticTuningTest, TheFastestIsTakenAndKept) {
  const auto test = [&] {
    const auto fastest = fastest_of(runtime());
    EXPECT_EQ(read_tuning(runtime().device(0).gpu(), "NVIDIA Fake").tuning.size(), 1u);
    const auto compile = [](const jit::Program& program) {
      return jit::Binary{.symbol = program.kernel, .image = {'c'}, .resources = {}};
    };
    Runtime later(OCTOFOLD_FAKE_DRIVER, {.compile = compile});
    EXPECT_THAT(kernels_of(later, 2), testing::Each(fastest));
    EXPECT_NE(kernels_of(later, 1, 301).front(), fastest) << "another product";
  };
  EXPECT_EXIT(in_own_process(test), testing::ExitedWithCode(0),
              "m 300, n 512, k 640, .* takes 15.0 us, .* as planned 30.0");
}

TEST_F(AutomaticTuningTest, ATableThatIsNotFollowedStaysAsItIs) {
  const auto test = [&] {
    fs::create_directories(table().parent_path());
    std::ofstream(table()) << "{}";
    fastest_of(runtime());
    fastest_of(runtime(), 600);
    EXPECT_EQ(text_of_table(), "{}");
  };
  EXPECT_EXIT(in_own_process(test), testing::ExitedWithCode(0),
              "is ignored(.|\n)*choices are of this process alone: 'octofold': expected a value");
}

TEST_F(AutomaticTuningTest, WhatOthersHaveChosenMeanwhileStays) {
  const auto test = [&] {
    std::string before;
    fastest_of(runtime(), 300, [&] {
      const MeasuredChoice theirs{plan::complete("gemm: m 300, n 512, k 640, b e5m2 128x128"),
                                  "128x128.w2.c1x1x1.b1.early", 1, 2};
      write_choices(runtime().device(0).gpu(), "NVIDIA Fake", {&theirs, 1});
      before = text_of_table();
    });
    EXPECT_EQ(text_of_table(), before);
  };
  EXPECT_EXIT(in_own_process(test), testing::ExitedWithCode(0), "takes 15.0 us");
}

}  // namespace
}  // namespace octofold::cuda
