#include "export.h"

#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <tvm/ffi/error.h>

#include "octofold/error.h"

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

tvm::ffi::Error translate(const Error& error) {
  std::string message = error.what();
  if (error.system_error() != 0) message = std::to_string(error.system_error()) + ":" + message;
  // No C++ backtrace: the message says all that a Python user can act on.
  return {kind_of(error), as_utf8(message), ""};
}

}  // namespace

tvm::ffi::String as_utf8(std::string_view text) {
  using Json = nlohmann::json;  // has what reads and writes UTF-8
  const std::string valid = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(valid).get<std::string>();
}

void refuse_argument(const Call& call, std::int32_t index, const std::string& expected) {
  TVM_FFI_THROW(TypeError) << call.name << ": argument " << index << ": expected " << expected
                           << ", got " << call.given[index].GetTypeKey();
}

void require_count(const Call& call, std::int32_t expected) {
  if (call.count == expected) return;
  TVM_FFI_THROW(TypeError) << call.name << ": expected " << expected << " arguments, got "
                           << call.count;
}

void rethrow(const Call& call) {
  try {
    throw;
  } catch (const Error& error) {
    throw translate(error);
  } catch (const std::bad_alloc&) {
    throw tvm::ffi::Error("octofold.OutOfMemoryError",
                          std::string(call.name) + ": the host has too little memory left", "");
  }
}

}  // namespace octofold::bindings
