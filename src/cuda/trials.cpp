#include "cuda/trials.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "cuda/context.h"

namespace octofold::cuda {

Trials::Trials(const Driver& driver, ContextHandle context, std::size_t kernels)
    : driver_(driver),
      context_(context),
      microseconds_(kernels, std::numeric_limits<double>::infinity()),
      calls_(kRounds * kernels) {
  for (std::size_t i = 0; i < calls_.size(); ++i) calls_[i].kernel = i % kernels;
  if (kernels == 1) fastest_ = 0;
}

Trials::~Trials() { free_events(); }

Trials::Turn Trials::next(Stream stream) {
  if (fastest_) return {*fastest_};
  // The capture of another stream forbids to ask for an event, too.
  const RelaxedCapture relaxed(driver_);
  const auto begun = std::span(calls_).first(begun_);
  const bool all_done = std::ranges::count_if(begun, [&](Call& call) { return is_done(call); }) ==
                        static_cast<std::ptrdiff_t>(calls_.size());
  if (all_done) {
    const auto least = std::ranges::min_element(microseconds_);
    const double first = microseconds_.front();
    const bool gains = *least < std::min((1 - kLeastGain) * first, first - kLeastMicroseconds);
    fastest_ = gains ? static_cast<std::size_t>(least - microseconds_.begin()) : 0;
    free_events();
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

void Trials::mark(EventHandle event, Stream stream) const {
  const ContextGuard current(driver_, context_);
  driver_.check(driver_.event_record(event, stream.handle), "cuEventRecord");
}

bool Trials::is_done(Call& call) {
  if (call.end == nullptr) return true;
  if (!call.is_queued || driver_.event_query(call.end) == kNotReady) return false;
  float milliseconds = 0;
  const bool is_timed = driver_.event_elapsed_time(&milliseconds, call.begin, call.end) == kSuccess;
  if (is_timed) {
    double& least = microseconds_[call.kernel];
    least = std::min(least, 1e3 * milliseconds);
  }
  for (EventHandle* event : {&call.begin, &call.end}) {
    driver_.event_destroy(std::exchange(*event, nullptr));
  }
  return true;
}

void Trials::free_events() {
  for (Call& call : calls_) {
    for (EventHandle event : {call.begin, call.end}) {
      if (event != nullptr) driver_.event_destroy(event);
    }
    call.begin = call.end = nullptr;
  }
}

bool is_capturing(const Driver& driver, ContextHandle context, Stream stream) {
  const ContextGuard current(driver, context);
  int status = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  return driver.stream_is_capturing(stream.handle, &status) != kSuccess || status != 0;
}

}  // namespace octofold::cuda
