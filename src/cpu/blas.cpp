#include "cpu/blas.h"

#include <array>
#include <atomic>
#include <cblas.h>
#include <cstddef>
#include <memory>
#include <sys/mman.h>

#include "core/check.h"

// OpenBLAS's packing buffers are ours, by the linker's --wrap (cmake/dependencies.cmake). Its
// serial build looks its own up unlocked, so that two calls would pack over each other, and asks
// forever where no memory is. (The threaded one starts a pool when the library is loaded.)
extern "C" {
void* __wrap_blas_memory_alloc(int process);
void __wrap_blas_memory_free(void* buffer);
}

namespace {

// Address space, of which multiply()'s operands touch some 2 MB: the smallest size with which
// OpenBLAS is built for a 64-bit processor. It packs no more than there is of A and B.
constexpr std::size_t kBufferBytes = std::size_t{32} << 20;

// Kept from call to call, without a lock, which a fork could leave held.
std::array<std::atomic<void*>, 64> free_buffers{};
thread_local void* call_buffer = nullptr;

struct GiveBack {
  void operator()(void* buffer) const {
    for (std::atomic<void*>& place : free_buffers) {
      void* none = nullptr;
      if (place.compare_exchange_strong(none, buffer)) return;
    }
    munmap(buffer, kBufferBytes);
  }
};
using Buffer = std::unique_ptr<void, GiveBack>;

// For a call of OpenBLAS, which has no way to say that there is none.
Buffer take_buffer() {
  for (std::atomic<void*>& place : free_buffers) {
    if (void* const buffer = place.exchange(nullptr)) return Buffer(buffer);
  }
  void* const buffer = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (buffer != MAP_FAILED) return Buffer(buffer);
  octofold::core::fail(octofold::ErrorCode::kOutOfMemory,
                       "a product on the CPU: no {} bytes of address space for a thread",
                       kBufferBytes);
}

}  // namespace

void* __wrap_blas_memory_alloc(int) { return call_buffer; }
void __wrap_blas_memory_free(void*) {}

namespace octofold::cpu {

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_stride,
              const float* b, std::int64_t b_stride, float* d, std::int64_t d_stride) {
  const Buffer buffer = take_buffer();
  call_buffer = buffer.get();
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
