#include "cuda/tuning_file.h"

#include <system_error>

#include "octofold/error.h"

#include "core/file.h"
#include "core/options.h"
#include "jit/kernel_cache.h"

namespace octofold::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostBytes = 16 << 20;

fs::path file_of(std::string_view gpu_name) {
  const core::Options& options = core::options();
  if (!options.uses_tuning) return {};
  if (!options.tuning_file.empty()) return options.tuning_file;
  if (options.cache_folder.empty() || gpu_name.empty()) return {};
  if (!jit::KernelCache(options.cache_folder).fault().empty()) return {};
  return fs::path(options.cache_folder) / "tuning" / plan::tuning_file_name(gpu_name);
}

}  // namespace

TuningFile read_tuning(const plan::Gpu& gpu, std::string_view gpu_name) {
  TuningFile read{.file = file_of(gpu_name)};
  std::error_code error;
  if (read.file.empty() || !fs::exists(read.file, error)) return read;
  try {
    read.tuning =
        plan::Tuning(core::File::open_for_reading(read.file).read_text(kMostBytes), gpu, gpu_name);
  } catch (const Error& fault) {
    read.fault = fault.what();
  }
  return read;
}

}  // namespace octofold::cuda
