// Products on the fake GPU.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/log.h"

#include "cuda/fake_runtime.h"
#include "cuda/product.h"
#include "kernels/sm90/config/gemm.h"
#include "support/gpu_product.h"

namespace octofold::cuda {

class ProductTest : public FakeGpuTest {
 protected:
  ProductTest() {
    set_log_handler([this](LogLevel, std::string_view message) { log_.emplace_back(message); });
  }
  ~ProductTest() override { set_log_handler({}); }

  void multiply(core::Product product, std::string_view candidate = {}, Stream stream = {}) {
    product.candidate = candidate;
    cuda::multiply(runtime().device(0), product, stream);
  }
  std::string refusal(const core::Product& product, std::string_view candidate = {},
                      ErrorCode code = ErrorCode::kUnsupported) {
    return error_of([&] { multiply(product, candidate); }, code);
  }
  const fake::Launch& last() { return state().launches.back(); }
  config::Sm90GemmParams last_params() { return last().params_as<config::Sm90GemmParams>(); }
  std::vector<fake::TensorMapCall>& maps() { return state().tensor_maps; }

  std::vector<std::string> log_;
};

}  // namespace octofold::cuda
