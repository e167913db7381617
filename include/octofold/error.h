// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>

#include "octofold/export.h"

namespace octofold {

enum class ErrorCode {
  kInvalidArgument,  ///< the caller's argument is wrong; the message names it
  kUnsupported,      ///< valid, but nothing here can do it
  kUnavailable,      ///< needs a device, a driver or a library that is not there
  kIo,               ///< the operating system refused a file operation
  kBadFormat,        ///< a file is not what it claims to be
  kInternal,         ///< a fault of Octofold itself
};

/// Thrown by every function of the API. The message names the argument (or file), what was
/// expected and what came.
class OCTOFOLD_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int system_error = 0)
      : std::runtime_error(message), code_(code), system_error_(system_error) {}

  ErrorCode code() const noexcept { return code_; }
  /// The errno behind a kIo; 0 where the system gave none, and for all other codes.
  int system_error() const noexcept { return system_error_; }

 private:
  ErrorCode code_;
  int system_error_;
};

}  // namespace octofold
