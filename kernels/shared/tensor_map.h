// How TMA finds its way in a matrix, as kernels take it.
#pragma once

namespace octofold::config {

// A CUtensorMap: opaque, made by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

}  // namespace octofold::config
