// octofold::Error on its way to Python: each code has a kind, and python/octofold/_core/errors.py
// has an exception class for each kind. An errno stands before the message: "2:cannot open …".
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <tvm/ffi/error.h>
#include <utility>

#include "octofold/error.h"

namespace octofold::bindings {

tvm::ffi::Error translate(const Error& error);

/// A name as a template's argument.
template <std::size_t kSize>
struct Name {
  consteval Name(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }
  char text[kSize];
};

/// Guarded<name, f>::call() calls f and lets nothing out but tvm::ffi::Error.
template <Name kName, auto kFunction>
struct Guarded;

template <Name kName, typename Result, typename... Arguments, Result (*kFunction)(Arguments...)>
struct Guarded<kName, kFunction> {
  static Result call(Arguments... arguments) {
    try {
      return kFunction(std::move(arguments)...);
    } catch (const Error& error) {
      throw translate(error);
    } catch (const std::bad_alloc&) {
      throw tvm::ffi::Error("octofold.OutOfMemoryError",
                            std::string(kName.text) + ": the host has too little memory left", "");
    }
  }
};

/// Exports `function` of octofold::bindings under `name`, or under its own.
#define OCTOFOLD_EXPORT_AS(name, function) \
  TVM_FFI_DLL_EXPORT_TYPED_FUNC(           \
      name, (::octofold::bindings::Guarded<#name, &::octofold::bindings::function>::call))
#define OCTOFOLD_EXPORT(function) OCTOFOLD_EXPORT_AS(function, function)

}  // namespace octofold::bindings
