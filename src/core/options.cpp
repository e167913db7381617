#include "core/options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sched.h>
#include <string>
#include <string_view>
#include <thread>

#include "core/check.h"

namespace octofold::core {
namespace {

constexpr int kMaxThreads = 1024;

// CPUs in this process's affinity mask: what a container or taskset leaves it.
int usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int parse_num_threads(const char* text) {
  if (text == nullptr) return std::min(usable_cpus(), kMaxThreads);
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < 1 ||
      value > kMaxThreads) {
    fail(ErrorCode::kInvalidArgument,
         "environment variable OCTOFOLD_NUM_THREADS: expected a whole number from 1 to {}, got "
         "'{}'",
         kMaxThreads, view);
  }
  return value;
}

LogLevel parse_log_level(const char* text) {
  if (text == nullptr) return LogLevel::kInfo;
  const std::string_view view(text);
  if (view == "debug") return LogLevel::kDebug;
  if (view == "info") return LogLevel::kInfo;
  if (view == "warning") return LogLevel::kWarning;
  fail(ErrorCode::kInvalidArgument,
       "environment variable OCTOFOLD_LOG_LEVEL: expected debug, info or warning, got '{}'", view);
}

std::string cache_folder(const char* (*getenv)(const char* name)) {
  const auto value = [&](const char* name) {
    const char* text = getenv(name);
    return std::string(text != nullptr ? text : "");
  };
  if (std::string chosen = value("OCTOFOLD_CACHE_DIR"); !chosen.empty()) return chosen;
  // The XDG Base Directory Specification: a path that is not absolute is as good as none.
  if (const std::string xdg = value("XDG_CACHE_HOME"); xdg.starts_with('/')) {
    return xdg + "/octofold";
  }
  if (const std::string home = value("HOME"); !home.empty()) return home + "/.cache/octofold";
  return "";
}

}  // namespace

Options parse_options(const char* (*getenv)(const char* name)) {
  const char* nvrtc = getenv("OCTOFOLD_NVRTC");
  return {.num_threads = parse_num_threads(getenv("OCTOFOLD_NUM_THREADS")),
          .log_level = parse_log_level(getenv("OCTOFOLD_LOG_LEVEL")),
          .nvrtc_library = nvrtc != nullptr ? nvrtc : "",
          .cache_folder = cache_folder(getenv)};
}

const Options& options() {
  // A throwing initializer leaves the static uninitialized: the next call tries again.
  static const Options instance =
      parse_options([](const char* name) -> const char* { return std::getenv(name); });
  return instance;
}

}  // namespace octofold::core
