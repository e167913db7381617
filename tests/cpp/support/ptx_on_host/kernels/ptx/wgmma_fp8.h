// wgmma.h beside this.
#pragma once

namespace octofold::ptx {

template <int kWidth>
struct WgmmaFp8;

}  // namespace octofold::ptx
