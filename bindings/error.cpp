#include "error.h"

#include <string>

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

tvm::ffi::Error translate(const Error& error) {
  std::string message = error.what();
  if (error.system_error() != 0) message = std::to_string(error.system_error()) + ":" + message;
  // No C++ backtrace: the message says all that a Python user can act on.
  return {kind_of(error), message, ""};
}

}  // namespace octofold::bindings
