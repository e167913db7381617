// Kernels that are compiled before anybody waits for them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "jit/program.h"

namespace octofold::jit {

struct CompileReport {
  std::int64_t compiled = 0;
  std::int64_t found = 0;  ///< in the cache
};

/// Brings the programs into the cache, as compile_cached() does, by as many threads as one
/// operation may have: kernels do not wait for each other. `tell` is called as kernels are done, by
/// the thread that called. What it throws, or a kernel, ends the run: no other kernel is begun.
/// Throws Error(kIo) where kernels cannot be kept: elsewhere that costs time only, here it is all
/// that matters.
CompileReport compile_all(std::span<const Program> programs, std::span<const Header> headers,
                          const std::function<void(std::int64_t done)>& tell = {});

}  // namespace octofold::jit
