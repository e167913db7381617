// Every environment variable that the library reads, typed and documented; docs/environment.md
// lists them for users. Nothing else calls getenv. An empty variable counts as unset.
#pragma once

#include <string>

#include "octofold/log.h"

namespace octofold::core {

struct Options {
  /// OCTOFOLD_NUM_THREADS: threads of one CPU operation, 1 … 1024. Default: the CPUs that this
  /// process may run on.
  int num_threads;
  /// OCTOFOLD_LOG_LEVEL: "debug", "info" (default) or "warning".
  LogLevel log_level;
  /// OCTOFOLD_NVRTC: the libnvrtc to use, a path or a soname. Default: empty, the system's newest.
  std::string nvrtc_library;
  /// OCTOFOLD_CACHE_DIR: where compiled kernels are kept. Default: octofold in XDG_CACHE_HOME, else
  /// in ~/.cache; empty without a home: nothing is kept.
  std::string cache_folder;
  /// OCTOFOLD_PRECOMPILED_KERNELS: "0": kernels that come with the library are compiled as others
  /// are. Default: "1".
  bool uses_precompiled_kernels = true;
  /// OCTOFOLD_TUNING: the table of measured choices that planners follow; "0": none. Default:
  /// empty, that of the GPU in the folder `tuning` of the cache. "auto": that one, and products
  /// that it has not try the best few kernels in their first calls.
  std::string tuning_file;
  bool uses_tuning = true;
  bool tries_kernels = false;
  /// OCTOFOLD_CHECK_GROUPS: "1": operations that take groups' offsets or counts, or experts' ids,
  /// on a GPU look through these there, and the next such call says what was wrong. Default: "0".
  bool check_groups = false;
  /// OCTOFOLD_BATCH_INVARIANT: "1": a row of a product's or an attention's result does not depend
  /// on the rows beside it, in all calls (octofold/batch_invariant.h). Default: "0".
  bool batch_invariant = false;
  /// OCTOFOLD_TARGET: "sm_80" and so on: plan and compile for this architecture, from sm_75 on,
  /// rather than the GPU's own, which has to be a later one. The compute capability, 80; 0, the
  /// default: the GPU's own.
  int target = 0;
};

/// Read once, at first use. Throws Error(kInvalidArgument) that names the variable, each time,
/// until the process has a valid value.
const Options& options();

/// Reads options from a given environment, as options() does: for tests.
Options parse_options(const char* (*getenv)(const char* name));

}  // namespace octofold::core
