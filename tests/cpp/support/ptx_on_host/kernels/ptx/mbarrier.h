// mbarriers that count, and are waited for.
#pragma once

#include <mutex>
#include <unordered_map>

#include "kernels/ptx/shared_memory.h"
#include "support/fibers.h"

namespace octofold::ptx {

class Mbarrier {
 public:
  explicit Mbarrier(unsigned arrivals) : arrivals_(arrivals), pending_(arrivals) {}

  // `bytes` more are expected, or fewer.
  void count(unsigned barrier, unsigned arrivals, long bytes) {
    meeting_.change([&] {
      if (arrivals > pending_) test::fail("mbarrier", barrier, "has too many arrivals");
      pending_ -= arrivals;
      bytes_ += bytes;
      if (pending_ > 0 || bytes_ != 0) return;
      pending_ = arrivals_;
      ++phase_;
    });
  }
  void await(unsigned barrier, unsigned parity) {
    meeting_.await([&] { return phase_ % 2 != parity; }, "mbarrier", barrier);
  }

 private:
  test::Meeting meeting_;
  unsigned arrivals_, pending_, phase_ = 0;
  long bytes_ = 0;
};

// The barriers of a cluster, by the places of their addresses, which their memory holds, too:
// nobody may write there. A launch begins with none.
class Mbarriers {
 public:
  void clear() { barriers_.clear(); }
  void init(unsigned address, unsigned arrivals) {
    const std::lock_guard lock(mutex_);
    const std::size_t place = SharedMemory::place(address);
    barriers_.erase(place);
    barriers_.try_emplace(place, arrivals);
    std::memcpy(&shared[address], &place, sizeof(place));
  }
  Mbarrier& at(unsigned address) {
    const std::lock_guard lock(mutex_);
    const std::size_t place = SharedMemory::place(address);
    const auto found = barriers_.find(place);
    if (found == barriers_.end() || std::memcmp(&shared[address], &place, sizeof(place)) != 0) {
      test::fail("mbarrier", address, "is used before mbarrier_init, or written over");
    }
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::size_t, Mbarrier> barriers_;
};
inline Mbarriers mbarriers;

inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  mbarriers.init(barrier, arrivals);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(unsigned barrier) { mbarriers.at(barrier).count(barrier, 1, 0); }
inline void mbarrier_arrive_at_rank(unsigned barrier, unsigned of_block) {
  mbarrier_arrive(address_at_rank(barrier, of_block));
}
inline void mbarrier_arrive_expect_bytes(unsigned barrier, unsigned bytes) {
  mbarriers.at(barrier).count(barrier, 1, bytes);
}
inline void mbarrier_arrive_after_copies(unsigned barrier) {
  copies_commit();
  copies_wait<0>();
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  mbarriers.at(barrier).await(barrier, parity);
}

// Bytes that have arrived.
inline void complete_bytes(unsigned barrier, std::size_t bytes) {
  mbarriers.at(barrier).count(barrier, 0, -static_cast<long>(bytes));
}

inline void store_async(unsigned remote, float4 values, unsigned remote_barrier) {
  std::memcpy(&shared[remote], &values, sizeof(values));
  complete_bytes(remote_barrier, sizeof(values));
}
inline void store_async_at_rank(unsigned address, unsigned of_block, unsigned value,
                                unsigned barrier) {
  store_shared_word(address_at_rank(address, of_block), value);
  complete_bytes(address_at_rank(barrier, of_block), sizeof(value));
}

}  // namespace octofold::ptx
