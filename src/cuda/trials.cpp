#include "cuda/trials.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cuda/context.h"

namespace octofold::cuda {

Trials::Trials(const Driver& driver, ContextHandle context, std::size_t kernels)
    : driver_(driver), context_(context), times_(kernels), calls_(kRounds * kernels) {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    // Each round begins with another kernel, so that none always has a step's first call.
    calls_[i].kernel = (i + i / kernels) % kernels;
    calls_[i].counts = i >= kernels;
  }
  if (kernels == 1) fastest_ = 0;
}

Trials::~Trials() {
  std::ranges::for_each(calls_, [&](Call& call) { free_events(call); });
}

Trials::Turn Trials::next(Stream stream) {
  if (fastest_) return {*fastest_};
  // The capture of another stream forbids to ask for an event, too.
  const RelaxedCapture relaxed(driver_);
  const auto begun = std::span(calls_).first(begun_);
  const auto done = std::ranges::count_if(begun, [&](Call& call) { return is_done(call); });
  if (done == static_cast<std::ptrdiff_t>(calls_.size())) {
    fastest_ = decide();
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

std::size_t Trials::decide() const {
  const double first = times_.front().least;
  const auto fastest = std::ranges::min_element(times_, {}, &Times::least);
  const double bar = std::min((1 - kLeastGain) * first, first - kLeastMicroseconds);
  const bool gains = first < std::numeric_limits<double>::infinity() && fastest->most < bar;
  return gains ? static_cast<std::size_t>(fastest - times_.begin()) : 0;
}

void Trials::mark(EventHandle event, Stream stream) const {
  const ContextGuard current(driver_, context_);
  driver_.check(driver_.event_record(event, stream.handle), "cuEventRecord");
}

bool Trials::is_done(Call& call) {
  using enum Call::State;
  if (call.state == kDone) return true;
  if (call.state == kBegun) return false;
  if (call.state == kQueued) {
    if (driver_.event_query(call.end) == kNotReady) return false;
    float milliseconds = 0;
    if (driver_.event_elapsed_time(&milliseconds, call.begin, call.end) == kSuccess &&
        call.counts) {
      Times& times = times_[call.kernel];
      times.least = std::min(times.least, 1e3 * milliseconds);
      times.most = std::max(times.most, 1e3 * milliseconds);
    }
  }
  free_events(call);
  call.state = kDone;
  return true;
}

void Trials::free_events(Call& call) const {
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
