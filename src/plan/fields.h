// Properties derived from a configuration's or a problem's list of fields, visit(name, value): its
// text as a C++ value, its hash, its description. Each such struct lists its fields once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "octofold/types.h"

#include "core/format.h"

namespace octofold::plan {

template <typename T>
concept HasFields = requires(const T& value) { value.visit([](std::string_view, const auto&) {}); };

/// The value as C++ text, as template arguments are written in a kernel's name: numbers,
/// enumerators as casts to `type`, structs with designated initializers.
template <typename T>
std::string literal(const T& value, std::string_view type = {}) {
  if constexpr (HasFields<T>) {
    std::string text = "{";
    value.visit([&](std::string_view name, const auto& field) {
      text += core::format("{}.{} = {}", text.size() > 1 ? ", " : "", name,
                           literal(field, core::format("decltype({}::{})", T::kTypeName, name)));
    });
    return text + "}";
  } else if constexpr (std::is_enum_v<T>) {
    return core::format("{}({})", type, static_cast<int>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    // Hexadecimal loses nothing.
    return core::format("{:a}{}", value, std::is_same_v<T, float> ? "f" : "");
  } else {
    return core::format("{}", value);
  }
}

/// The name expression of a kernel template: "octofold::gemm_kernel<octofold::config::…{…}>".
template <HasFields Config>
std::string kernel_name(std::string_view kernel, const Config& config) {
  return core::format("octofold::{}<{}{}>", kernel, Config::kTypeName, literal(config));
}

/// For hash tables of this process.
template <HasFields T>
std::size_t hash(const T& value) {
  std::size_t hash = 0;
  const auto mix = [&](std::uint64_t bits) {
    hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  };
  value.visit([&]<typename Field>(std::string_view, const Field& field) {
    if constexpr (HasFields<Field>) {
      mix(plan::hash(field));
    } else if constexpr (std::is_same_v<Field, double>) {
      mix(std::bit_cast<std::uint64_t>(field));
    } else if constexpr (std::is_same_v<Field, float>) {
      mix(std::bit_cast<std::uint32_t>(field));
    } else {
      mix(static_cast<std::uint64_t>(field));
    }
  });
  return hash;
}

/// A field in the API's words. An enumerator has a word() beside it, found by its namespace; where
/// that is empty, as where a bool is false, the field goes without saying.
template <typename T>
std::string words_of(const T& value) {
  if constexpr (requires { octofold::name(value); }) {
    return std::string(octofold::name(value));
  } else if constexpr (requires { word(value); }) {
    return std::string(word(value));
  } else if constexpr (HasFields<T>) {
    std::string text;
    value.visit([&]<typename Field>(std::string_view name, const Field& field) {
      std::string words;
      if constexpr (std::is_same_v<Field, bool>) {
        if (field) words = name;
      } else {
        words = words_of(field);
      }
      if (!words.empty()) text += core::format("{}{}", text.empty() ? "" : " ", words);
    });
    return text;
  } else {
    return core::format("{}", value);
  }
}

/// How many fields a struct lists.
template <HasFields T>
constexpr int field_count(const T& value) {
  int count = 0;
  value.visit([&](std::string_view, const auto&) { ++count; });
  return count;
}

/// One line for logs and errors: "a e4m3 1x128, out bfloat16, tile_rows 128, wait_ahead". A struct
/// of two fields, as an operand, is one phrase; a larger one is told field by field.
template <HasFields T>
std::string describe(const T& value) {
  std::string text;
  const auto add = [&](std::string_view phrase) {
    if (!phrase.empty()) text += core::format("{}{}", text.empty() ? "" : ", ", phrase);
  };
  value.visit([&]<typename Field>(std::string_view name, const Field& field) {
    if constexpr (std::is_same_v<Field, bool>) {
      if (field) add(name);
    } else {
      if constexpr (HasFields<Field> && !requires { word(field); }) {
        if (field_count(field) > 2) return add(describe(field));
      }
      const std::string words = words_of(field);
      if (!words.empty()) add(core::format("{} {}", name, words));
    }
  });
  return text;
}

}  // namespace octofold::plan
