// The library's log: formatted only when a handler is installed and the level is asked for.
#pragma once

#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "octofold/log.h"

namespace octofold::core {

bool log_enabled(LogLevel level);
void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace octofold::core
