// Tables of measured choices on disk.
#pragma once

#include <filesystem>
#include <span>
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

/// Puts choices into a GPU's file, in place of what it has for the same products. Of a table that
/// is not followed nothing is kept. The file is replaced as a whole, by one process at a time.
/// Returns the file. Throws Error: kUnavailable where there is no place for one, kIo.
std::filesystem::path write_choices(const plan::Gpu& gpu, std::string_view gpu_name,
                                    std::span<const MeasuredChoice> choices);

}  // namespace octofold::cuda
