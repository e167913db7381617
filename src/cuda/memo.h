// What was worked out once for a key is not worked out again.
#pragma once

#include <cstddef>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace octofold::cuda {

/// Safe to use from several threads. Values are small and returned by copy, so that the memo can
/// start afresh when it holds more than a process should ever need: sizes that follow the lengths
/// of texts never end.
template <typename Key, typename Value, typename Hash>
class Memo {
 public:
  /// The value of `key`; make() works it out, without the lock, where it is new.
  template <typename Make>
  Value get(const Key& key, Make&& make) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
    }
    const Value value = make();
    const std::unique_lock lock(mutex_);
    if (values_.size() >= kMostValues) values_.clear();
    values_.emplace(key, value);
    return value;
  }

 private:
  static constexpr std::size_t kMostValues = 1 << 16;

  std::shared_mutex mutex_;
  std::unordered_map<Key, Value, Hash> values_;
};

/// Mixes one more integer (or enumerator, or bool) into a hash.
template <typename T>
constexpr std::size_t mix(std::size_t hash, T value) {
  hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace octofold::cuda
