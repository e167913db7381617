// The input and output of the JIT, which knows nothing of what a kernel computes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octofold::jit {

/// A header of device code, under the name by which others include it: "kernels/sm90/kernel.h".
struct Header {
  std::string_view name;
  std::string_view text;
};

struct Program {
  std::string header;  ///< the one that declares the kernel
  std::string
      kernel;  ///< name expression: "octofold::gemm_kernel<…{.form = …, .tile_rows = 256, …}>"
  std::string architecture;  ///< "sm_90a"; "compute_80" for PTX
  std::string description;   ///< for people: "gemm: a e4m3 1x128, b e4m3 128x128, out bfloat16, …"
};

/// The assembler's report on the kernel. Spills and stack in bytes of a thread.
struct ResourceUse {
  int registers = 0;
  int shared_bytes = 0;  ///< of a block, beside what its launch asks for
  int stack_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;

  friend bool operator==(const ResourceUse&, const ResourceUse&) = default;
};

struct Binary {
  std::string symbol;       ///< the kernel's mangled name in the image
  std::vector<char> image;  ///< a cubin; or PTX, with its terminating zero
  ResourceUse resources;    ///< nothing of PTX, which the driver assembles

  friend bool operator==(const Binary&, const Binary&) = default;
};

}  // namespace octofold::jit
