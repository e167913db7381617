// Tables of measured choices on disk.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "plan/gpu.h"
#include "plan/tuning.h"

namespace octofold::cuda {

struct TuningFile {
  std::filesystem::path file{};  ///< empty: there is no place for one, or none is wanted
  /// Why it is not followed; empty where it is, or there is none.
  std::string fault{};
  plan::Tuning tuning{};
};

/// Reads a GPU's file, by OCTOFOLD_TUNING or in the cache's folder. Throws only std::bad_alloc.
TuningFile read_tuning(const plan::Gpu& gpu, std::string_view gpu_name);

}  // namespace octofold::cuda
