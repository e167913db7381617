// Functions on their way to Python: OCTOFOLD_EXPORT makes a function of this library one of
// tvm-ffi's.
//
// tvm-ffi has a macro for it too. That one unpacks each argument of each function in code of its
// own, which took 40 s to compile for the casts alone; here each type has one function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <tvm/ffi/any.h>
#include <tvm/ffi/function.h>
#include <type_traits>
#include <utility>

namespace octofold::bindings {

/// A call from Python: the function's name, what it is given, and where its result goes.
struct Call {
  const char* name;
  const tvm::ffi::AnyView* given;
  std::int32_t count;
  tvm::ffi::Any* result;
};

/// Throws TypeError: the argument at `index` is no `expected`.
[[noreturn]] void refuse_argument(const Call& call, std::int32_t index,
                                  const std::string& expected);

/// Throws TypeError unless there are so many arguments.
void require_count(const Call& call, std::int32_t expected);

/// The argument at `index`. Throws TypeError where it is no T.
template <typename T>
[[gnu::noinline]] T argument(const Call& call, std::int32_t index) {
  std::optional<T> value = call.given[index].try_cast<T>();
  if (!value) refuse_argument(call, index, tvm::ffi::TypeTraits<T>::TypeStr());
  return *std::move(value);
}

/// Throws the exception that is being handled as Python is to see it. Each code of octofold::Error
/// has a kind there, for which python/octofold/_core/errors.py has an exception class. An errno
/// stands before the message: "2:cannot open …".
[[noreturn]] void rethrow(const Call& call);

/// Calls a function with the arguments of the call, after those in `held`.
template <typename Result, typename... Arguments, typename... Held>
void run(const Call& call, Result (*function)(Arguments...), const Held&... held) {
  constexpr std::size_t kHeld = sizeof...(Held), kGiven = sizeof...(Arguments) - kHeld;
  using Types = std::tuple<std::decay_t<Arguments>...>;
  require_count(call, kGiven);
  const auto run_with = [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    return function(held...,
                    argument<std::tuple_element_t<kHeld + kIndices, Types>>(call, kIndices)...);
  };
  try {
    if constexpr (std::is_void_v<Result>) {
      run_with(std::make_index_sequence<kGiven>{});
    } else {
      *call.result = run_with(std::make_index_sequence<kGiven>{});
    }
  } catch (...) {
    rethrow(call);
  }
}

/// Calls a function that takes the call as it is.
inline void run(const Call& call, void (*function)(const Call&)) {
  try {
    function(call);
  } catch (...) {
    rethrow(call);
  }
}

/// A function that holds its first argument. Messages call it `name`, a literal.
template <auto kFunction, typename Held>
tvm::ffi::Function holding(const char* name, Held held) {
  return tvm::ffi::Function::FromPacked(
      [name, held = std::move(held)](const tvm::ffi::AnyView* given, std::int32_t count,
                                     tvm::ffi::Any* result) {
        run(Call{name, given, count, result}, kFunction, held);
      });
}

/// A function that takes the call as it is.
inline tvm::ffi::Function packed(const char* name, void (*function)(const Call&)) {
  return tvm::ffi::Function::FromPacked(
      [name, function](const tvm::ffi::AnyView* given, std::int32_t count, tvm::ffi::Any* result) {
        run(Call{name, given, count, result}, function);
      });
}

/// Exports `function` of octofold::bindings under `name`, or under its own.
#define OCTOFOLD_EXPORT_AS(name, function)                                                    \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* given,           \
                                                     std::int32_t count, TVMFFIAny* result) { \
    TVM_FFI_SAFE_CALL_BEGIN();                                                                \
    run(Call{#name, reinterpret_cast<const tvm::ffi::AnyView*>(given), count,                 \
             reinterpret_cast<tvm::ffi::Any*>(result)},                                       \
        &function);                                                                           \
    TVM_FFI_SAFE_CALL_END();                                                                  \
  }
#define OCTOFOLD_EXPORT(function) OCTOFOLD_EXPORT_AS(function, function)

}  // namespace octofold::bindings
