#include "cuda/trials.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "cuda/context.h"

namespace octofold::cuda {
namespace {

// Captures into a graph, while it lives, all that is launched into this stream.
class Capture {
 public:
  explicit Capture(const Driver& driver) : driver_(driver) {
    driver.check(driver.stream_create(&stream_.handle, kNonBlocking), "cuStreamCreate");
    if (const Result result = driver.stream_begin_capture(stream_.handle, kCaptureModeRelaxed);
        result != kSuccess) {
      driver.stream_destroy(stream_.handle);
      driver.fail(result, "cuStreamBeginCapture");
    }
  }
  ~Capture() {
    end();
    if (graph_ != nullptr) driver_.graph_destroy(graph_);
    driver_.stream_destroy(stream_.handle);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  Stream stream() const { return stream_; }

  GraphExecHandle instantiate() {
    driver_.check(end(), "cuStreamEndCapture");
    GraphExecHandle exec = nullptr;
    driver_.check(driver_.graph_instantiate(&exec, graph_, 0), "cuGraphInstantiate");
    return exec;
  }

 private:
  Result end() {
    if (std::exchange(has_ended_, true)) return kSuccess;
    return driver_.stream_end_capture(stream_.handle, &graph_);
  }

  const Driver& driver_;
  Stream stream_{};
  GraphHandle graph_ = nullptr;
  bool has_ended_ = false;
};

}  // namespace

Trials::Trials(const Driver& driver, ContextHandle context, std::size_t kernels)
    : driver_(driver),
      context_(context),
      microseconds_(kernels, std::numeric_limits<double>::infinity()),
      calls_(kRounds * kernels) {
  for (std::size_t i = 0; i < calls_.size(); ++i) calls_[i].kernel = i % kernels;
  if (kernels == 1) fastest_ = 0;
}

Trials::~Trials() {
  std::ranges::for_each(calls_, [&](Call& call) { free(call); });
}

Trials::Turn Trials::next(Stream stream) {
  if (fastest_) return {*fastest_};
  // The capture of another stream forbids to ask for an event, too.
  const RelaxedCapture relaxed(driver_);
  const auto begun = std::span(calls_).first(begun_);
  const auto done = std::ranges::count_if(begun, [&](Call& call) { return is_done(call); });
  if (done == static_cast<std::ptrdiff_t>(calls_.size())) {
    const auto least = std::ranges::min_element(microseconds_);
    const bool gains = *least < (1 - kLeastGain) * microseconds_.front();
    fastest_ = gains ? static_cast<std::size_t>(least - microseconds_.begin()) : 0;
    return {*fastest_};
  }
  if (begun_ == calls_.size() || is_capturing(driver_, context_, stream)) return {};
  Call& call = calls_[begun_];
  const ContextGuard current(driver_, context_);
  driver_.check(driver_.event_create(&call.begin, 0), "cuEventCreate");
  driver_.check(driver_.event_create(&call.end, 0), "cuEventCreate");
  ++begun_;
  return {call.kernel, &call};
}

void Trials::record(Call& call, Stream stream, const std::function<void(Stream)>& launch) const {
  const ContextGuard current(driver_, context_);
  const RelaxedCapture relaxed(driver_);
  Capture capture(driver_);
  const auto mark = [&](EventHandle event) {
    driver_.check(driver_.event_record_with_flags(event, capture.stream().handle, kRecordInGraph),
                  "cuEventRecordWithFlags");
  };
  mark(call.begin);
  launch(capture.stream());
  mark(call.end);
  call.graph = capture.instantiate();
  driver_.check(driver_.graph_launch(call.graph, stream.handle), "cuGraphLaunch");
  call.is_queued = true;
}

bool Trials::is_done(Call& call) {
  if (call.end == nullptr) return true;
  if (!call.is_queued || driver_.event_query(call.end) == kNotReady) return false;
  float milliseconds = 0;
  if (driver_.event_elapsed_time(&milliseconds, call.begin, call.end) == kSuccess) {
    double& least = microseconds_[call.kernel];
    least = std::min(least, 1e3 * milliseconds);
  }
  free(call);
  return true;
}

void Trials::free(Call& call) const {
  if (call.graph != nullptr) driver_.graph_exec_destroy(std::exchange(call.graph, nullptr));
  for (EventHandle* event : {&call.begin, &call.end}) {
    if (*event != nullptr) driver_.event_destroy(std::exchange(*event, nullptr));
  }
}

bool is_capturing(const Driver& driver, ContextHandle context, Stream stream) {
  const ContextGuard current(driver, context);
  int status = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  return driver.stream_is_capturing(stream.handle, &status) != kSuccess || status != 0;
}

}  // namespace octofold::cuda
