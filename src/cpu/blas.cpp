#include "cpu/blas.h"

#include <array>
#include <atomic>
#include <cblas.h>
#include <cstddef>
#include <sys/mman.h>

#include "core/check.h"

// OpenBLAS's packing buffers are ours: the linker's --wrap (cmake/dependencies.cmake) routes its
// two functions for them through here. Its own table of buffers is looked up unlocked in the serial
// build, so that two calls would pack over each other, and asks for memory again and again where
// there is none. (The threaded flavour starts a pool of its own when the library is loaded.)
extern "C" {
void* __wrap_blas_memory_alloc(int process);
void __wrap_blas_memory_free(void* buffer);
}

namespace {

// Address space: multiply()'s operands touch some 2 MB of it. It is the smallest size with which
// OpenBLAS is built for a 64-bit processor; the sizes of its blocks make the most of what it is
// built with, but pack no more than there is of A and B.
constexpr std::size_t kBufferBytes = std::size_t{32} << 20;

// Kept from call to call, without a lock, which a fork could leave held.
std::array<std::atomic<void*>, 64> free_buffers{};

// That of the call on this thread.
thread_local void* call_buffer = nullptr;

// Takes a buffer before OpenBLAS is entered, which has no way to say that there is none.
struct Buffer {
  Buffer() {
    for (std::atomic<void*>& free_buffer : free_buffers) {
      call_buffer = free_buffer.exchange(nullptr);
      if (call_buffer != nullptr) return;
    }
    void* const mapped = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      octofold::core::fail(octofold::ErrorCode::kOutOfMemory,
                           "a product on the CPU: no {} bytes of address space for a thread",
                           kBufferBytes);
    }
    call_buffer = mapped;
  }
  ~Buffer() {
    for (std::atomic<void*>& free_buffer : free_buffers) {
      void* none = nullptr;
      if (free_buffer.compare_exchange_strong(none, call_buffer)) return;
    }
    munmap(call_buffer, kBufferBytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

}  // namespace

void* __wrap_blas_memory_alloc(int) { return call_buffer; }

void __wrap_blas_memory_free(void*) {}

namespace octofold::cpu {

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_stride,
              const float* b, std::int64_t b_stride, float* d, std::int64_t d_stride) {
  const Buffer buffer;
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
