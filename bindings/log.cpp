#include "octofold/log.h"

#include <string>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <utility>

#include "error.h"
#include "text.h"

namespace octofold::bindings {
namespace {

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
  }
  return "?";
}

}  // namespace

using PythonLogHandler = tvm::ffi::TypedFunction<void(tvm::ffi::String, tvm::ffi::String)>;

void set_log_handler(tvm::ffi::Optional<PythonLogHandler> handler) {
  if (!handler) return octofold::set_log_handler({});
  octofold::set_log_handler(
      [function = *std::move(handler)](LogLevel level, std::string_view text) {
        function(name_of(level), as_utf8(text));
      });
}

OCTOFOLD_EXPORT(set_log_handler)

}  // namespace octofold::bindings
