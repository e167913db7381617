#include "octofold/types.h"

#include <array>
#include <fmt/ranges.h>
#include <iterator>
#include <vector>

#include "core/check.h"
#include "kernels/shared/cast_rule.h"

namespace octofold {
namespace {

template <typename Enum, std::size_t kCount>
struct Names {
  std::string_view kind;
  std::array<std::string_view, kCount> texts;  // in the order of the enumerators

  std::string_view of(Enum value) const {
    const auto index = static_cast<std::size_t>(value);
    if (index < kCount) return texts[index];
    core::fail(ErrorCode::kInvalidArgument, "{} {} is not one of: {}", kind,
               static_cast<std::int64_t>(value), fmt::join(texts, ", "));
  }

  Enum parse(std::string_view text) const {
    for (std::size_t i = 0; i < kCount; ++i) {
      if (texts[i] == text) return static_cast<Enum>(i);
    }
    core::fail(ErrorCode::kInvalidArgument, "{} '{}' is not one of: {}", kind, text,
               fmt::join(texts, ", "));
  }
};

constexpr Names<DType, 6> kDTypes{"dtype",
                                  {"float32", "float16", "bfloat16", "e4m3", "e5m2", "int32"}};
constexpr auto kGranularities = [] {
  Names<Granularity, std::size(kGranularityTable)> names{"granularity", {}};
  for (const GranularityRow& row : kGranularityTable) {
    names.texts[static_cast<std::size_t>(row.granularity)] = row.name;
  }
  return names;
}();
constexpr Names<Overflow, 2> kOverflows{"overflow", {"saturate", "nan"}};
constexpr auto kRules = [] {
  Names<Rule, std::size(config::kCastRules)> names{"rule", {}};
  for (const config::CastRuleRow& row : config::kCastRules) {
    names.texts[static_cast<std::size_t>(row.rule)] = row.name;
  }
  return names;
}();
constexpr Names<Activation, 8> kActivations{
    "activation",
    {"swiglu", "geglu-tanh", "geglu", "swiglu-oss", "silu", "gelu", "gelu-tanh", "relu-squared"}};
constexpr Names<GateLayout, 2> kGateLayouts{"gate layout", {"halves", "interleaved"}};
constexpr Names<GroupLayout, 2> kGroupLayouts{"group layout", {"spaced", "tight"}};
constexpr Names<NormKind, 2> kNorms{"norm", {"rms", "layer"}};
constexpr Names<Scoring, 2> kScorings{"scoring", {"softmax", "sigmoid"}};
constexpr Names<AttentionCompute, 2> kAttentionComputes{"compute", {"exact", "fp8"}};

}  // namespace

std::string_view name(DType dtype) { return kDTypes.of(dtype); }
std::string_view name(Granularity granularity) { return kGranularities.of(granularity); }
std::string_view name(Overflow overflow) { return kOverflows.of(overflow); }
std::string_view name(Rule rule) { return kRules.of(rule); }
std::string_view name(Activation activation) { return kActivations.of(activation); }
std::string_view name(GateLayout layout) { return kGateLayouts.of(layout); }
std::string_view name(GroupLayout layout) { return kGroupLayouts.of(layout); }
std::string_view name(NormKind norm) { return kNorms.of(norm); }
std::string_view name(Scoring scoring) { return kScorings.of(scoring); }
std::string_view name(AttentionCompute compute) { return kAttentionComputes.of(compute); }

DType parse_dtype(std::string_view text) {
  if (text == "float8_e4m3fn") return DType::kE4M3;
  if (text == "float8_e5m2") return DType::kE5M2;
  return kDTypes.parse(text);
}
Granularity parse_granularity(std::string_view text) { return kGranularities.parse(text); }
Overflow parse_overflow(std::string_view text) { return kOverflows.parse(text); }
Rule parse_rule(std::string_view text) { return kRules.parse(text); }
Activation parse_activation(std::string_view text) { return kActivations.parse(text); }
GateLayout parse_gate_layout(std::string_view text) { return kGateLayouts.parse(text); }
GroupLayout parse_group_layout(std::string_view text) { return kGroupLayouts.parse(text); }
NormKind parse_norm(std::string_view text) { return kNorms.parse(text); }
Scoring parse_scoring(std::string_view text) { return kScorings.parse(text); }
AttentionCompute parse_attention_compute(std::string_view text) {
  return kAttentionComputes.parse(text);
}

}  // namespace octofold
