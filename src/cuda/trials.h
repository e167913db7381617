// OCTOFOLD_TUNING=auto: which of a few kernels is the fastest, by the time of calls that are made
// anyway.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <vector>

#include "octofold/stream.h"

#include "cuda/driver.h"

namespace octofold::cuda {

/// The calls of one problem take its kernels in turn, three times round, between two events each.
/// Nobody waits for these: a later call asks whether they have come. When all have, the kernel with
/// the least time of its three is taken for good; the first one unless another gains 3 % and 4 µs,
/// by which launches into an idle stream differ. Calls meanwhile, and in graphs, take the first.
///
/// Not safe to use from several threads, but for record().
class Trials {
 public:
  static constexpr std::size_t kRounds = 3;
  static constexpr double kLeastGain = 0.03, kLeastMicroseconds = 4;

  /// A call that is timed.
  struct Call {
    std::size_t kernel = 0;
    EventHandle begin = nullptr, end = nullptr;
    std::atomic<bool> is_queued = false;
  };
  struct Turn {
    std::size_t kernel = 0;
    Call* call = nullptr;  ///< null: it is not timed
  };

  /// The context is that of the streams.
  Trials(const Driver& driver, ContextHandle context, std::size_t kernels);
  ~Trials();
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;

  /// The kernel that the next call on this stream is to take.
  Turn next(Stream stream);

  /// Queues the events of a turn's call around what launch() queues.
  template <typename Launch>
  void record(Call& call, Stream stream, Launch&& launch) const {
    mark(call.begin, stream);
    launch();
    mark(call.end, stream);
    call.is_queued = true;
  }

  std::optional<std::size_t> fastest() const { return fastest_; }
  /// The least time of a kernel so far; infinity before it has one.
  double microseconds(std::size_t kernel) const { return microseconds_.at(kernel); }

 private:
  void mark(EventHandle event, Stream stream) const;
  /// True once the call has its time, or never will.
  bool is_done(Call& call);
  void free_events();

  const Driver& driver_;
  ContextHandle context_;
  std::vector<double> microseconds_;
  std::vector<Call> calls_;
  std::size_t begun_ = 0;  ///< of the calls
  std::optional<std::size_t> fastest_;
};

/// True while a graph is captured from the stream, or where that cannot be told.
bool is_capturing(const Driver& driver, ContextHandle context, Stream stream);

}  // namespace octofold::cuda
