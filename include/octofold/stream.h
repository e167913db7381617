// The stream that orders a GPU's work.
#pragma once

namespace octofold {

/// A cudaStream_t or CUstream of the device that the tensors are on; null: the legacy default
/// stream. Operations return once their work is in the stream, before it is done. The CPU backend
/// ignores the stream; its work is done when it returns.
struct Stream {
  void* handle = nullptr;
};

}  // namespace octofold
