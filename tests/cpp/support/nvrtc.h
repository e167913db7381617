// Tests that compile kernels, and whether they may be left out.
#pragma once

#include "core/options.h"
#include "jit/nvrtc.h"
#include "support/test.h"

namespace octofold::test {

/// Not where OCTOFOLD_NVRTC names a library, as `make test-cpp` does: there they have to run.
inline bool nvrtc_is_missing() {
  return core::options().nvrtc_library.empty() && !jit::probe_nvrtc().available;
}

template <typename Base = testing::Test>
class NvrtcTest : public Base {
 protected:
  void SetUp() override {
    if (nvrtc_is_missing()) GTEST_SKIP();
  }
};

/// With the compute capability of a GPU to compile for.
using NvrtcGpuTest = NvrtcTest<testing::TestWithParam<int>>;
inline std::string sm_name(const testing::TestParamInfo<int>& capability) {
  return "Sm" + std::to_string(capability.param);
}

}  // namespace octofold::test
