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

}  // namespace octofold::cuda
