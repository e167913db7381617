// DType types of the safetensors format.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "octofold/types.h"

namespace octofold::model {

/// In the order of the reference implementation, which is one of increasing alignment: writers sort
/// tensors by it. Sub-byte types are packed without padding between elements.
enum class SafetensorsDType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

namespace detail {
struct SafetensorsDTypeRow {
  std::string_view name;
  std::int64_t bits;
};
/// Indexed by SafetensorsDType.
inline constexpr std::array<SafetensorsDTypeRow, 22> kSafetensorsDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
}  // namespace detail

/// The name of a dtype, as the header of a file spells it.
constexpr std::string_view name(SafetensorsDType dtype) {
  return detail::kSafetensorsDTypes[static_cast<std::size_t>(dtype)].name;
}

/// Size of one element in bits.
constexpr std::int64_t bits_of(SafetensorsDType dtype) {
  return detail::kSafetensorsDTypes[static_cast<std::size_t>(dtype)].bits;
}

constexpr std::optional<SafetensorsDType> find_safetensors_dtype(std::string_view name) {
  for (std::size_t i = 0; i < detail::kSafetensorsDTypes.size(); ++i) {
    if (detail::kSafetensorsDTypes[i].name == name) return static_cast<SafetensorsDType>(i);
  }
  return std::nullopt;
}

/// The types that octofold::quantize() casts from.
constexpr std::optional<DType> quantizable_dtype(SafetensorsDType dtype) {
  switch (dtype) {
    case SafetensorsDType::kF32: return DType::kFloat32;
    case SafetensorsDType::kF16: return DType::kFloat16;
    case SafetensorsDType::kBF16: return DType::kBFloat16;
    default: return std::nullopt;
  }
}

}  // namespace octofold::model
