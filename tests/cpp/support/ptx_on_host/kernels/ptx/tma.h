// The copy engine, whose tensor maps are support/tensor_map_on_host.h. What it copies is there at
// once, and only then counted.
#pragma once

#include "kernels/ptx/mbarrier.h"
#include "support/tensor_map_on_host.h"

namespace octofold::ptx {

// Bits 4 to 6 of an address are changed by those 3 above them, as many as rows have units of 16.
inline unsigned swizzled_place(unsigned address, unsigned row_bytes) {
  const unsigned units = row_bytes / 16 - 1;
  return address ^ (address / 128 & units) * 16;
}

// Calls move(memory, tensor) with the places of each unit of 16 bytes, in both; null: outside.
template <typename Move>
void for_each_unit(const void* map, unsigned memory, int x, int y, int z, Move&& move) {
  const test::TensorMapOnHost tensor = test::tensor_map_at(map);
  const unsigned row_bytes = tensor.box_columns * tensor.element_bytes;
  for (unsigned row = 0; row < tensor.box_rows; ++row) {
    for (unsigned byte = 0; byte < row_bytes; byte += 16) {
      const unsigned offset = row * row_bytes + byte;
      move(swizzled_place(memory + offset, row_bytes),
           tensor.find(x + static_cast<int>(byte / tensor.element_bytes), y + static_cast<int>(row),
                       z));
    }
  }
}

inline void prefetch_tensor_map(const void*) {}
inline void tma_load(unsigned destination, const void* map, unsigned barrier, int x, int y,
                     int z = 0) {
  std::size_t bytes = 0;
  for_each_unit(map, destination, x, y, z, [&](unsigned memory, test::TensorUnit unit) {
    std::memset(&shared[memory], 0, 16);
    if (unit.bytes > 0) std::memcpy(&shared[memory], unit.data, unit.bytes);
    bytes += 16;
  });
  complete_bytes(barrier, bytes);
}
inline void tma_load_multicast(unsigned destination, const void* map, unsigned barrier, int x,
                               int y, unsigned short mask) {
  for (unsigned block = 0; block < kMostBlocks; ++block) {
    if ((mask >> block & 1) == 0) continue;
    tma_load(address_at_rank(destination, block), map, address_at_rank(barrier, block), x, y);
  }
}

inline void tma_store(const void* map, unsigned source, int x, int y, int z = 0) {
  for_each_unit(map, source, x, y, z, [](unsigned memory, test::TensorUnit unit) {
    if (unit.bytes > 0) std::memcpy(unit.data, &shared[memory], unit.bytes);
  });
}
inline void tma_add(const void* map, unsigned source, int x, int y, int z = 0) {
  for_each_unit(map, source, x, y, z, [](unsigned memory, test::TensorUnit unit) {
    for (std::size_t i = 0; i < unit.bytes; i += sizeof(float)) {
      float more;
      std::memcpy(&more, &shared[memory + i], sizeof(more));
      std::atomic_ref(*reinterpret_cast<float*>(unit.data + i)) += more;
    }
  });
}
inline void tma_store_commit() {}
template <int kPending>
inline void tma_store_wait_read() {}
inline void fence_proxy_async() {}

}  // namespace octofold::ptx
