// The CUDA context that is current in this thread.
#pragma once

#include "cuda/driver.h"

namespace octofold::cuda {

/// Makes a context current while it lives. A thread that works on one device, as torch's do, has
/// the context current already: then nothing is pushed.
class ContextGuard {
 public:
  ContextGuard(const Driver& driver, ContextHandle context) : driver_(driver) {
    ContextHandle current = nullptr;
    driver.check(driver.ctx_get_current(&current), "cuCtxGetCurrent");
    if (current == context) return;
    driver.check(driver.ctx_push_current(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~ContextGuard() {
    ContextHandle popped = nullptr;
    if (pushed_) driver_.ctx_pop_current(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

/// Allows this thread, while it lives, what a stream capture of any thread would forbid: loading a
/// kernel allocates, but enters no stream.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver.check(driver.thread_exchange_stream_capture_mode(&mode_),
                 "cuThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { driver_.thread_exchange_stream_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
};

}  // namespace octofold::cuda
