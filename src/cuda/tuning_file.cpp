#include "cuda/tuning_file.h"

#include <fstream>
#include <iterator>
#include <system_error>

#include "octofold/error.h"

#include "core/format.h"
#include "core/options.h"

namespace octofold::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = 16 << 20;

fs::path file_of(std::string_view gpu_name) {
  const core::Options& options = core::options();
  if (!options.uses_tuning) return {};
  if (!options.tuning_file.empty()) return options.tuning_file;
  if (options.cache_folder.empty() || gpu_name.empty()) return {};
  return fs::path(options.cache_folder) / "tuning" / plan::tuning_file_name(gpu_name);
}

}  // namespace

TuningFile read_tuning(const plan::Gpu& gpu, std::string_view gpu_name) {
  TuningFile read{.file = file_of(gpu_name)};
  std::error_code error;
  if (read.file.empty() || !fs::exists(read.file, error)) return read;
  const std::uintmax_t bytes = fs::file_size(read.file, error);
  std::ifstream stream(read.file, std::ios::binary);
  if (error || !stream) {
    read.fault = core::format("it cannot be read{}", error ? ": " + error.message() : "");
    return read;
  }
  if (bytes > kMostBytes) {
    read.fault = core::format("expected at most {} bytes, got {}", kMostBytes, bytes);
    return read;
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  try {
    read.tuning = plan::Tuning(text, gpu, gpu_name);
  } catch (const Error& fault) {
    read.fault = fault.what();
  }
  return read;
}

}  // namespace octofold::cuda
