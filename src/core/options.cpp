#include "core/options.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <sched.h>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "octofold/batch_invariant.h"

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

int parse_num_threads(std::string_view text) {
  if (text.empty()) return std::min(usable_cpus(), kMaxThreads);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 ||
      value > kMaxThreads) {
    fail(ErrorCode::kInvalidArgument,
         "environment variable OCTOFOLD_NUM_THREADS: expected a whole number from 1 to {}, got "
         "'{}'",
         kMaxThreads, text);
  }
  return value;
}

LogLevel parse_log_level(std::string_view text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info" || text.empty()) return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  fail(ErrorCode::kInvalidArgument,
       "environment variable OCTOFOLD_LOG_LEVEL: expected debug, info or warning, got '{}'", text);
}

bool parse_switch(std::string_view variable, std::string_view text, bool unset) {
  if (text.empty()) return unset;
  if (text == "1") return true;
  if (text == "0") return false;
  fail(ErrorCode::kInvalidArgument, "environment variable {}: expected 0 or 1, got '{}'", variable,
       text);
}

// Architectures that differ in what kernels may use.
int parse_target(std::string_view text) {
  if (text.empty()) return 0;
  constexpr std::pair<std::string_view, int> kTargets[] = {
      {"sm_75", 75}, {"sm_80", 80},   {"sm_86", 86},   {"sm_87", 87},   {"sm_89", 89},
      {"sm_90", 90}, {"sm_100", 100}, {"sm_103", 103}, {"sm_120", 120}, {"sm_121", 121}};
  for (const auto& [name, target] : kTargets) {
    if (text == name) return target;
  }
  fail(ErrorCode::kInvalidArgument,
       "environment variable OCTOFOLD_TARGET: expected sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, "
       "sm_100, sm_103, sm_120 or sm_121, got '{}'",
       text);
}

std::string cache_folder(std::string_view chosen, std::string_view xdg, std::string_view home) {
  if (!chosen.empty()) return std::string(chosen);
  // The XDG Base Directory Specification: a path that is not absolute is as good as none.
  if (xdg.starts_with('/')) return std::string(xdg) + "/octofold";
  if (!home.empty()) return std::string(home) + "/.cache/octofold";
  return "";
}

}  // namespace

Options parse_options(const char* (*getenv)(const char* name)) {
  const auto value = [&](const char* name) -> std::string_view {
    const char* text = getenv(name);
    return text != nullptr ? text : "";
  };
  const auto is_on = [&](const char* name, bool unset) {
    return parse_switch(name, value(name), unset);
  };
  const std::string_view tuning = value("OCTOFOLD_TUNING");
  const bool tries_kernels = tuning == "auto";
  return {.num_threads = parse_num_threads(value("OCTOFOLD_NUM_THREADS")),
          .log_level = parse_log_level(value("OCTOFOLD_LOG_LEVEL")),
          .nvrtc_library = std::string(value("OCTOFOLD_NVRTC")),
          .cache_folder =
              cache_folder(value("OCTOFOLD_CACHE_DIR"), value("XDG_CACHE_HOME"), value("HOME")),
          .uses_precompiled_kernels = is_on("OCTOFOLD_PRECOMPILED_KERNELS", true),
          .tuning_file = tries_kernels ? "" : std::string(tuning),
          .uses_tuning = tuning != "0",
          .tries_kernels = tries_kernels,
          .check_groups = is_on("OCTOFOLD_CHECK_GROUPS", false),
          .batch_invariant = is_on("OCTOFOLD_BATCH_INVARIANT", false),
          .target = parse_target(value("OCTOFOLD_TARGET"))};
}

const Options& options() {
  // A throwing initializer leaves the static uninitialized: the next call tries again.
  static const Options instance =
      parse_options([](const char* name) -> const char* { return std::getenv(name); });
  return instance;
}

}  // namespace octofold::core

namespace octofold {
namespace {

std::atomic<bool>& enabled_for_all() {
  static std::atomic<bool> enabled = core::options().batch_invariant;
  return enabled;
}

}  // namespace

void set_batch_invariant(bool enabled) { enabled_for_all().store(enabled); }

bool is_batch_invariant() { return enabled_for_all().load(std::memory_order_relaxed); }

}  // namespace octofold
