#include "cpu/blas.h"

#include <cblas.h>
#include <mutex>
#include <semaphore>

// Makes the serial OpenBLAS safe to call from several threads at once.
//
// Its one piece of shared state is the table from which each call takes a packing buffer; a build
// without threads looks it up unlocked, and two calls then pack over each other. The linker's
// --wrap (cmake/dependencies.cmake) routes the two functions of that table through here. The
// threaded flavour locks by itself, but starts a pool of its own when the library is loaded.
extern "C" {
void* __real_blas_memory_alloc(int process);
void __real_blas_memory_free(void* buffer);
void* __wrap_blas_memory_alloc(int process);
void __wrap_blas_memory_free(void* buffer);
}

namespace {

// The table of a serial build has at least 50 entries; further callers wait for one.
constexpr int kBuffers = 48;
std::counting_semaphore<kBuffers> free_buffers{kBuffers};
std::mutex table_mutex;

}  // namespace

void* __wrap_blas_memory_alloc(int process) {
  free_buffers.acquire();
  const std::lock_guard lock(table_mutex);
  return __real_blas_memory_alloc(process);
}

void __wrap_blas_memory_free(void* buffer) {
  {
    const std::lock_guard lock(table_mutex);
    __real_blas_memory_free(buffer);
  }
  free_buffers.release();
}

namespace octofold::cpu {

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_stride,
              const float* b, std::int64_t b_stride, float* d, std::int64_t d_stride) {
  const auto size = [](std::int64_t value) { return static_cast<blasint>(value); };
  if (m == 1) {  // reads B in place, where the matrix product would pack it first
    cblas_sgemv(CblasRowMajor, CblasNoTrans, size(n), size(k), 1.0f, b, size(b_stride), a, 1, 0.0f,
                d, 1);
    return;
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size(m), size(n), size(k), 1.0f, a,
              size(a_stride), b, size(b_stride), 0.0f, d, size(d_stride));
}

std::string blas_description() { return openblas_get_config(); }

}  // namespace octofold::cpu
