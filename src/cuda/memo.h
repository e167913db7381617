// What was worked out once for a problem is not worked out again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>

namespace octofold::cuda {

class Device;

/// By device and problem, one of those of src/plan. Safe to use from several threads. Values are
/// small and returned by copy, so that the memo can start afresh when it holds more than a process
/// should ever need: sizes that follow the lengths of texts never end.
template <typename Problem, typename Value>
class Memo {
 public:
  /// The value of the problem; make() works it out, without the lock, where it is new.
  template <typename Make>
  Value get(const Device& device, const Problem& problem, Make&& make) {
    const Key key{&device, problem};
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
  struct Key {
    const Device* device;
    Problem problem;

    friend bool operator==(const Key&, const Key&) = default;
  };

  struct Hash {
    std::size_t operator()(const Key& key) const {
      std::size_t hash = 0;
      const auto mix = [&](auto value) {
        hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
      };
      mix(reinterpret_cast<std::uintptr_t>(key.device));
      std::apply([&](auto... fields) { (mix(fields), ...); }, key.problem.fields());
      return hash;
    }
  };

  static constexpr std::size_t kMostValues = 1 << 16;

  std::shared_mutex mutex_;
  std::unordered_map<Key, Value, Hash> values_;
};

}  // namespace octofold::cuda
