// How the tiles of a product are walked, so that little of A and B is read from memory twice.
#pragma once

#include "kernels/shared/work.h"
#include "kernels/sm90/config/gemm.h"
#include "plan/gpu.h"

namespace octofold::plan::sm90 {

/// The bands for this kernel and work, whose own are not looked at. They change no bit of the
/// result.
config::TileBands bands_of(const config::Sm90GemmConfig& config, const config::WorkParams& work,
                           const Gpu& gpu);

}  // namespace octofold::plan::sm90
