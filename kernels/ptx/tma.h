// The copy engine for tensors: PTX ISA, "Data Movement and Conversion Instructions:
// cp.async.bulk.tensor". Coordinates count elements, innermost dimension first.
#pragma once

namespace octofold::ptx {

__device__ inline void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies a box into shared memory and counts its bytes on the barrier. Elements outside the tensor
// arrive as zeros, and count too.
__device__ inline void tma_load(unsigned destination, const void* map, unsigned barrier, int x,
                                int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

// The same of a tensor of three dimensions.
__device__ inline void tma_load(unsigned destination, const void* map, unsigned barrier, int x,
                                int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// A box of two dimensions into each block of the cluster whose bit is set in `mask`: to the same
// offset in its shared memory, counted on its barrier.
__device__ inline void tma_load_multicast(unsigned destination, const void* map, unsigned barrier,
                                          int x, int y, unsigned short mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
      : "memory");
}

// Copies a box from shared memory; what lies outside the tensor is left out.
__device__ inline void tma_store(const void* map, unsigned source, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(source), "r"(x), "r"(y)
      : "memory");
}

// The same of a tensor of three dimensions.
__device__ inline void tma_store(const void* map, unsigned source, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(source), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Adds a box of FP32 from shared memory to what is there. Each element is added once, in memory.
__device__ inline void tma_add(const void* map, unsigned source, int x, int y) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}],"
      " [%1];" ::"l"(map),
      "r"(source), "r"(x), "r"(y)
      : "memory");
}

__device__ inline void tma_add(const void* map, unsigned source, int x, int y, int z) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}],"
      " [%1];" ::"l"(map),
      "r"(source), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Returns once the stores that this thread committed, but the latest `kPending`, have read their
// shared memory.
template <int kPending>
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Shared memory that this thread wrote with ordinary stores may now be read by the copy engine and
// the tensor cores, once a barrier has told them.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace octofold::ptx
