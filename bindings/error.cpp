#include "error.h"

#include <nlohmann/json.hpp>
#include <string>

#include "arguments.h"

namespace octofold::bindings {
namespace {

const char* kind_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument: return "octofold.InvalidArgumentError";
    case ErrorCode::kUnsupported: return "octofold.UnsupportedError";
    case ErrorCode::kUnavailable: return "octofold.UnavailableError";
    case ErrorCode::kIo:
      return error.system_error() == 0 ? "octofold.IoError" : "octofold.IoErrorWithErrno";
    case ErrorCode::kBadFormat: return "octofold.BadFormatError";
    case ErrorCode::kInternal: return "octofold.InternalError";
  }
  return "octofold.InternalError";
}

}  // namespace

tvm::ffi::String as_utf8(std::string_view text) {
  using Json = nlohmann::json;  // has what reads and writes UTF-8
  const std::string valid = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(valid).get<std::string>();
}

tvm::ffi::Error translate(const Error& error) {
  std::string message = error.what();
  if (error.system_error() != 0) message = std::to_string(error.system_error()) + ":" + message;
  // No C++ backtrace: the message says all that a Python user can act on.
  return {kind_of(error), as_utf8(message), ""};
}

}  // namespace octofold::bindings
