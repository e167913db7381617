#include "error.h"

namespace octofold::bindings {
namespace {

const char* kind_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "octofold.InvalidArgumentError";
    case ErrorCode::kUnsupported: return "octofold.UnsupportedError";
    case ErrorCode::kUnavailable: return "octofold.UnavailableError";
    case ErrorCode::kIo: return "octofold.IoError";
    case ErrorCode::kBadFormat: return "octofold.BadFormatError";
    case ErrorCode::kInternal: return "octofold.InternalError";
  }
  return "octofold.InternalError";
}

}  // namespace

tvm::ffi::Error translate(const Error& error) {
  // No C++ backtrace: the message says all that a Python user can act on.
  return {kind_of(error.code()), error.what(), ""};
}

}  // namespace octofold::bindings
