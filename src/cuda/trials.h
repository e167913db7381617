// OCTOFOLD_TUNING=auto: the fastest of a few kernels, by the time of calls that are made anyway.
#pragma once

#include <atomic>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "octofold/stream.h"

#include "cuda/driver.h"

namespace octofold::cuda {

/// The calls of one problem take its kernels in turn, four times round, each between two events.
/// The first round warms up. Nobody waits for the events: a later call asks whether they have come.
/// When all have, the kernel with the least time is taken for good if all of its times are less
/// than each of the first one's, by 3 % and by 4 µs, by which launches into an idle stream differ;
/// else the first one. Calls meanwhile, and in graphs, take the first.
///
/// Not safe to use from several threads, but for record() and fail().
class Trials {
 public:
  static constexpr std::size_t kRounds = 4;
  static constexpr double kLeastGain = 0.03, kLeastMicroseconds = 4;

  /// A call that is timed.
  struct Call {
    enum class State { kBegun, kQueued, kFailed, kDone };
    std::size_t kernel = 0;
    bool counts = true;  ///< not in the first round
    EventHandle begin = nullptr, end = nullptr;
    std::atomic<State> state = State::kBegun;
  };
  struct Turn {
    std::size_t kernel = 0;
    Call* call = nullptr;  ///< null: it is not timed
  };
  /// The microseconds that a kernel took: infinity and 0 before it has a time.
  struct Times {
    double least = std::numeric_limits<double>::infinity();
    double most = 0;
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
    call.state = Call::State::kQueued;
  }

  /// Says that a turn's call has not been queued, and never will be.
  static void fail(Call& call) { call.state = Call::State::kFailed; }

  std::optional<std::size_t> fastest() const { return fastest_; }
  const Times& times(std::size_t kernel) const { return times_.at(kernel); }

 private:
  void mark(EventHandle event, Stream stream) const;
  /// Takes the time of a call that has one by now. True once there is nothing to wait for.
  bool is_done(Call& call);
  std::size_t decide() const;
  void free_events(Call& call) const;

  const Driver& driver_;
  ContextHandle context_;
  std::vector<Times> times_;
  std::vector<Call> calls_;
  std::size_t begun_ = 0;  ///< of the calls
  std::optional<std::size_t> fastest_;
};

/// True while a graph is captured from the stream, or where that cannot be told.
bool is_capturing(const Driver& driver, ContextHandle context, Stream stream);

}  // namespace octofold::cuda
