#include "plan/literal.h"

namespace octofold::plan {

std::string_view literal(config::Element value) {
  using enum config::Element;
  switch (value) {
    case kFloat32: return "Element::kFloat32";
    case kFloat16: return "Element::kFloat16";
    case kBFloat16: return "Element::kBFloat16";
    case kE4M3: return "Element::kE4M3";
    case kE5M2: return "Element::kE5M2";
  }
  return "?";
}

std::string_view literal(config::GemmScaling value) {
  using enum config::GemmScaling;
  switch (value) {
    case kTensor: return "GemmScaling::kTensor";
    case kChannel: return "GemmScaling::kChannel";
    case kBlock: return "GemmScaling::kBlock";
    case kBlockByBlock: return "GemmScaling::kBlockByBlock";
  }
  return "?";
}

std::string_view literal(config::Addend value) {
  using enum config::Addend;
  switch (value) {
    case kNone: return "Addend::kNone";
    case kOutputType: return "Addend::kOutputType";
    case kFloat32: return "Addend::kFloat32";
  }
  return "?";
}

std::string_view literal(config::OperandLoad value) {
  using enum config::OperandLoad;
  switch (value) {
    case kTma: return "OperandLoad::kTma";
    case kThreads: return "OperandLoad::kThreads";
  }
  return "?";
}

std::string_view literal(config::OutputStore value) {
  using enum config::OutputStore;
  switch (value) {
    case kTma: return "OutputStore::kTma";
    case kDirect: return "OutputStore::kDirect";
  }
  return "?";
}

std::string_view literal(config::MathOrder value) {
  using enum config::MathOrder;
  switch (value) {
    case kFree: return "MathOrder::kFree";
    case kTakeTurns: return "MathOrder::kTakeTurns";
  }
  return "?";
}

std::string_view literal(config::ScaleUnit value) {
  using enum config::ScaleUnit;
  switch (value) {
    case kTensor: return "ScaleUnit::kTensor";
    case kChannel: return "ScaleUnit::kChannel";
    case kBlock1x128: return "ScaleUnit::kBlock1x128";
    case kBlock128x128: return "ScaleUnit::kBlock128x128";
  }
  return "?";
}

std::string_view literal(config::CastDirection value) {
  using enum config::CastDirection;
  switch (value) {
    case kRows: return "CastDirection::kRows";
    case kTransposed: return "CastDirection::kTransposed";
    case kBoth: return "CastDirection::kBoth";
  }
  return "?";
}

std::string_view literal(config::CastStep value) {
  using enum config::CastStep;
  switch (value) {
    case kTiles: return "CastStep::kTiles";
    case kRows: return "CastStep::kRows";
    case kWideRows: return "CastStep::kWideRows";
    case kClear: return "CastStep::kClear";
    case kAmax: return "CastStep::kAmax";
    case kEncode: return "CastStep::kEncode";
    case kFinish: return "CastStep::kFinish";
  }
  return "?";
}

std::string_view literal(config::CastForm value) {
  using enum config::CastForm;
  switch (value) {
    case kReciprocal: return "CastForm::kReciprocal";
    case kDivide: return "CastForm::kDivide";
    case kFactor: return "CastForm::kFactor";
  }
  return "?";
}

std::string_view literal(config::PowerOfTwoRounding value) {
  using enum config::PowerOfTwoRounding;
  switch (value) {
    case kCeil: return "PowerOfTwoRounding::kCeil";
    case kCeilLog2: return "PowerOfTwoRounding::kCeilLog2";
    case kTruncate: return "PowerOfTwoRounding::kTruncate";
    case kFloorLog2: return "PowerOfTwoRounding::kFloorLog2";
  }
  return "?";
}

}  // namespace octofold::plan
