// A memo of results, so that what was worked out for a problem is not worked out again.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "plan/fields.h"

namespace octofold::cuda {

/// Memos of different problems, in one list.
class AnyMemo {
 public:
  AnyMemo() = default;
  AnyMemo(const AnyMemo&) = delete;
  AnyMemo& operator=(const AnyMemo&) = delete;
  virtual ~AnyMemo() = default;
};

/// By problem, one of those of src/plan. Safe to use from several threads. Values are small and
/// returned by copy, so that the memo can start afresh when it holds more than a process should
/// ever need: sizes that follow the lengths of texts never end.
template <plan::HasFields Problem, typename Value>
class Memo : public AnyMemo {
 public:
  /// The value of the problem; make() works it out, without the lock, where it is new.
  template <typename Make>
  Value get(const Problem& problem, Make&& make) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = values_.find(problem); found != values_.end()) return found->second;
    }
    const Value value = make();
    const std::unique_lock lock(mutex_);
    if (values_.size() >= kMostValues) values_.clear();
    values_.emplace(problem, value);
    return value;
  }

 private:
  struct Hash {
    std::size_t operator()(const Problem& problem) const { return plan::hash(problem); }
  };

  static constexpr std::size_t kMostValues = 1 << 16;

  std::shared_mutex mutex_;
  std::unordered_map<Problem, Value, Hash> values_;
};

/// A number for each type of memo, from 0 on.
inline std::size_t next_memo_number() {
  static std::atomic<std::size_t> next = 0;
  return next++;
}
template <typename AMemo>
std::size_t memo_number() {
  static const std::size_t number = next_memo_number();
  return number;
}

}  // namespace octofold::cuda
