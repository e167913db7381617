#include "core/log.h"

#include <memory>
#include <mutex>

#include "core/options.h"

namespace octofold {
namespace {

// The handler is shared with calls in flight, so that replacing it never pulls it from under one.
// Nothing is locked during the call: a handler may log, or wait for another thread that does.
struct Sink {
  std::mutex mutex;
  std::shared_ptr<const LogHandler> handler;

  std::shared_ptr<const LogHandler> current() {
    const std::lock_guard lock(mutex);
    return handler;
  }
};

Sink& sink() {
  static Sink* const instance = new Sink;  // never destroyed: threads may log during exit
  return *instance;
}

}  // namespace

void set_log_handler(LogHandler handler) {
  auto shared = handler ? std::make_shared<const LogHandler>(std::move(handler)) : nullptr;
  const std::lock_guard lock(sink().mutex);
  sink().handler.swap(shared);
}

namespace core {

bool log_enabled(LogLevel level) {
  return sink().current() != nullptr && level >= options().log_level;
}

void log_message(LogLevel level, std::string_view message) {
  if (const auto handler = sink().current()) (*handler)(level, message);
}

}  // namespace core
}  // namespace octofold
