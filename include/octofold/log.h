// The log: where the library's messages go. The library itself prints nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "octofold/export.h"

namespace octofold {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning };

using LogHandler = std::function<void(LogLevel level, std::string_view message)>;

/// Installs the handler of all further messages; an empty one drops them (the default). Messages
/// below OCTOFOLD_LOG_LEVEL ("debug", "info", "warning"; default "info") are not formatted.
/// A handler may be called from several threads at once. An exception that it throws reaches the
/// caller of the operation that logged.
OCTOFOLD_API void set_log_handler(LogHandler handler);

}  // namespace octofold
