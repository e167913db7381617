// The library's log: formatted only when a handler is installed and the level is asked for.
#pragma once

#include <string_view>
#include <utility>

#include "octofold/log.h"

#include "core/format.h"

namespace octofold::core {

bool log_enabled(LogLevel level);
void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(level)) log_message(level, core::format(text, std::forward<Args>(args)...));
}

}  // namespace octofold::core
