// The messages that the library logs.
#pragma once

#include <string>
#include <vector>

#include "octofold/log.h"

namespace octofold::test {

/// Collects the messages that are logged while it lives.
class Log {
 public:
  Log() {
    set_log_handler([this](LogLevel, std::string_view message) { messages.emplace_back(message); });
  }
  ~Log() { set_log_handler({}); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// All of them, one behind another.
  std::string text() const {
    std::string all;
    for (const std::string& message : messages) all += message;
    return all;
  }

  std::vector<std::string> messages;
};

}  // namespace octofold::test
