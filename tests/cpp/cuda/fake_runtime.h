// A runtime on the fake driver, and a compiler that counts.
#pragma once

#include "core/shared_object.h"
#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "support/test.h"

namespace octofold::cuda {

using test::error_of;

/// A fresh machine for each test.
class FakeGpuTest : public testing::Test {
 protected:
  FakeGpuTest() {
    using Accessor = fake::State*();
    const core::SharedObject library(OCTOFOLD_FAKE_DRIVER);
    state_ = library.find<Accessor>("octofold_fake_driver_state")();
    std::destroy_at(state_);
    std::construct_at(state_);
  }

  Runtime& runtime() {
    if (!runtime_) {
      const auto compile = [this](const jit::Program& program) {
        ++compilations_;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // time to be asked again
        return jit::Binary{.symbol = program.kernel, .image = {'c', 'u'}, .resources = {}};
      };
      runtime_.emplace(OCTOFOLD_FAKE_DRIVER,
                       KernelSource{.compile = compile, .precompiled = precompiled_});
    }
    return *runtime_;
  }

  fake::State& state() { return *state_; }

  std::atomic<int> compilations_ = 0;
  /// The binaries that the library brings: none, unless a test says otherwise before runtime().
  std::function<std::optional<jit::Binary>(const jit::Program&)> precompiled_{};

 private:
  fake::State* state_;
  std::optional<Runtime> runtime_;
};

/// Operations, of which the launches are looked at that they queue.
class LaunchTest : public FakeGpuTest {
 protected:
  using Blocks = std::vector<unsigned>;

  LaunchTest() { state().params_bytes = sizeof(void*); }

  /// Blocks of the kernels that a call queues, on its stream. Parameters begin with `first_`.
  Blocks blocks_of(auto&& call) {
    state().launches.clear();
    call(runtime().device(0), Stream{&stream_});
    Blocks blocks;
    for (const fake::Launch& launch : state().launches) {
      EXPECT_EQ(launch.stream, &stream_);
      if (first_ != nullptr) {
        EXPECT_EQ(launch.params_as<void*>(), first_);
      }
      blocks.push_back(launch.blocks);
    }
    return blocks;
  }
  /// How many kernels it compiles.
  int compiled_by(auto&& call) {
    const int before = compilations_;
    blocks_of(call);
    return compilations_ - before;
  }
  /// The parameters of one of its launches. Sets how many bytes of them are kept, so that calls
  /// before it, whose parameters are others, are not asked.
  template <typename Params>
  Params params_of_call(auto&& call, std::size_t launch = 0) {
    state().params_bytes = sizeof(Params);
    blocks_of(call);
    state().params_bytes = sizeof(void*);
    return state().launches.at(launch).params_as<Params>();
  }

  const void* first_ = reinterpret_cast<void*>(0x1000);

 private:
  int stream_ = 0;
};

}  // namespace octofold::cuda
