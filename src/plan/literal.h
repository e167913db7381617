// Values of kernels/config as C++ text: so they get into a kernel's name.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "core/format.h"
#include "kernels/config/cast_config.h"
#include "kernels/config/gemm_config.h"

namespace octofold::plan {

/// "Element::kE4M3".
std::string_view literal(config::Element value);
std::string_view literal(config::GemmScaling value);
std::string_view literal(config::Addend value);
std::string_view literal(config::OperandLoad value);
std::string_view literal(config::OutputStore value);
std::string_view literal(config::MathOrder value);
std::string_view literal(config::ScaleUnit value);
std::string_view literal(config::CastDirection value);
std::string_view literal(config::CastStep value);
std::string_view literal(config::CastForm value);
std::string_view literal(config::PowerOfTwoRounding value);

/// Builds "octofold::config::GemmConfig{.a = octofold::config::Element::kE4M3, .tile_m = 128}".
class StructLiteral {
 public:
  explicit StructLiteral(std::string_view type)
      : text_(core::format("octofold::config::{}", type)) {}

  template <typename T>
  StructLiteral& field(std::string_view name, const T& value) {
    text_ += core::format("{}.{} = ", is_empty_ ? "{" : ", ", name);
    is_empty_ = false;
    if constexpr (std::is_enum_v<T>) {
      text_ += core::format("octofold::config::{}", literal(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      // Hexadecimal loses nothing.
      text_ += core::format("{:a}{}", value, std::is_same_v<T, float> ? "f" : "");
    } else {
      text_ += core::format("{}", value);
    }
    return *this;
  }

  std::string text() const { return text_ + "}"; }

 private:
  std::string text_;
  bool is_empty_ = true;
};

}  // namespace octofold::plan
