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
/// is not followed nothing is kept, but one that cannot be read is left. The file is replaced as a
/// whole. Returns it. Throws Error: kUnavailable where there is no place for one, kIo.
std::filesystem::path write_choices(const plan::Gpu& gpu, std::string_view gpu_name,
                                    std::span<const MeasuredChoice> choices);

/// Adds a choice that nobody asked for: where the file has another for the product, or is not
/// followed, it stays as it is. Throws Error as write_choices(), and where it is not followed.
void keep_choice(const plan::Gpu& gpu, std::string_view gpu_name, const MeasuredChoice& choice);

}  // namespace octofold::cuda
