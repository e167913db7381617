// fmt::format, of which each file compiles only its arguments: the formatting itself, instantiated
// once in format.cpp, would take most of a small file's time to compile.
#pragma once

#include <fmt/format.h>
#include <string>

namespace octofold::core {

std::string format_arguments(fmt::string_view text, fmt::format_args arguments);

/// Formats like fmt::format().
template <typename... Arguments>
std::string format(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  return format_arguments(text, fmt::make_format_args(arguments...));
}

}  // namespace octofold::core
