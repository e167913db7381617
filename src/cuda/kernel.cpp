#include "cuda/kernel.h"

#include <algorithm>

#include "core/check.h"
#include "cuda/context.h"

namespace octofold::cuda {

Kernel::Kernel(const Driver& driver, ContextHandle context, const plan::Gpu& gpu,
               const plan::KernelPlan& plan, const jit::Binary& binary)
    : driver_(&driver),
      context_(context),
      description_(plan.description),
      threads_(static_cast<unsigned>(plan.threads)),
      cluster_size_(static_cast<unsigned>(plan.cluster_size)),
      shared_bytes_(static_cast<unsigned>(plan.shared_bytes)),
      may_overlap_(gpu.compute_capability() >= 90) {
  const auto check = [&](Result result, std::string_view call) {
    if (result != kSuccess) driver.fail(result, core::format("{}: {}", description_, call));
  };
  const RelaxedCapture relaxed(driver);
  ModuleHandle module = nullptr;
  check(driver.module_load_data(&module, binary.image.data()), "cuModuleLoadData");
  check(driver.module_get_function(&function_, module, binary.symbol.c_str()),
        "cuModuleGetFunction");
  check(
      driver.func_set_attribute(function_, kMaxDynamicSharedSize, static_cast<int>(shared_bytes_)),
      core::format("{} bytes of dynamic shared memory", shared_bytes_));
}

// The configuration of a launch: its shape. `attributes` are the launch's, and have to outlive it.
LaunchConfig Kernel::launch_config(std::int64_t blocks, Stream stream,
                                   std::array<LaunchAttribute, 2>& attributes) const {
  unsigned count = 0;
  if (may_overlap_) {
    attributes[count].id = LaunchAttribute::kProgrammaticStreamSerialization;
    attributes[count++].programmatic_stream_serialization_allowed = 1;
  }
  if (cluster_size_ > 1) {
    attributes[count].id = LaunchAttribute::kClusterDimension;
    attributes[count++].cluster = {cluster_size_, 1, 1};
  }
  return {.grid_x = static_cast<unsigned>(blocks),
          .block_x = threads_,
          .shared_bytes = shared_bytes_,
          .stream = stream.handle,
          .attributes = attributes.data(),
          .attribute_count = count};
}

std::int64_t Kernel::resident_blocks() const {
  std::array<LaunchAttribute, 2> attributes{};
  const LaunchConfig config = launch_config(cluster_size_, {}, attributes);
  int clusters = 0;
  const ContextGuard current(*driver_, context_);
  const Result result = driver_->occupancy_max_active_clusters(&clusters, function_, &config);
  if (result != kSuccess) {
    driver_->fail(result, core::format("{}: cuOccupancyMaxActiveClusters", description_));
  }
  return std::int64_t{std::max(clusters, 1)} * cluster_size_;  // where none fits, launch() says so
}

void Kernel::launch(Stream stream, std::int64_t blocks, const void* params) const {
  std::array<LaunchAttribute, 2> attributes{};
  const LaunchConfig config = launch_config(blocks, stream, attributes);
  void* parameters[] = {const_cast<void*>(params)};  // the driver only reads them
  const ContextGuard current(*driver_, context_);
  const Result result = driver_->launch_kernel_ex(&config, function_, parameters, nullptr);
  if (result != kSuccess) [[unlikely]]
    fail_launch(result, blocks);
}

void Kernel::fail_launch(Result result, std::int64_t blocks) const {
  if (result == kInvalidHandle) {
    core::fail(ErrorCode::kInvalidArgument,
               "{}: expected a stream of the tensors' device that still exists: {}", description_,
               driver_->describe(result));
  }
  driver_->fail(
      result,
      core::format("{}: launch of {} blocks of {} threads, in clusters of {}, with {} bytes "
                   "of shared memory",
                   description_, blocks, threads_, cluster_size_, shared_bytes_));
}

}  // namespace octofold::cuda
