#include "plan/tuning.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/format.h"
#include "plan/fields.h"

namespace octofold::plan {
namespace {

using nlohmann::json;

[[noreturn]] void fail(ErrorCode code, std::string_view field, std::string_view expected,
                       std::string_view got) {
  core::fail(code, "'{}': expected {}, got {}", field, expected, got);
}

const json& field_of(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) fail(ErrorCode::kBadFormat, name, "a value", "none");
  return *found;
}

std::string text_of(const json& object, const char* name) {
  const json& value = field_of(object, name);
  if (!value.is_string()) fail(ErrorCode::kBadFormat, name, "text", value.type_name());
  return value.get<std::string>();
}

std::string number_of(const json& object, const char* name) {
  const json& value = field_of(object, name);
  if (!value.is_number_integer()) {
    fail(ErrorCode::kBadFormat, name, "a whole number", value.type_name());
  }
  return core::format("{}", value.get<std::int64_t>());
}

void require_same(const char* field, std::string_view here, std::string_view theirs) {
  if (here != theirs) fail(ErrorCode::kUnsupported, field, here, theirs);
}

// Addresses count, and of a C whether it is out: these do not change which candidates there are.
bool is_contiguous(const GemmProblem& problem) {
  GemmProblem plain = contiguous(problem.product);
  plain.c_is_out = problem.c_is_out;
  if (problem.product.form.c == Addend::kNone) plain.c_fits_tma = problem.c_fits_tma;
  return plain == problem;
}

}  // namespace

std::string tuning_key(const octofold::GemmProblem& product) {
  return core::format("gemm: {}", describe(product));
}

Tuning::Tuning(std::string_view text, const Gpu& gpu, std::string_view gpu_name) {
  const json table = json::parse(text, nullptr, false);
  if (!table.is_object()) {
    fail(ErrorCode::kBadFormat, "text", "a JSON object",
         table.is_discarded() ? "no JSON" : table.type_name());
  }
  require_same("octofold", OCTOFOLD_VERSION, text_of(table, "octofold"));
  require_same("gpu", gpu_name, text_of(table, "gpu"));
  require_same("compute_capability", core::format("{}.{}", gpu.compute_major, gpu.compute_minor),
               text_of(table, "compute_capability"));
  require_same("multiprocessors", core::format("{}", gpu.multiprocessors),
               number_of(table, "multiprocessors"));
  const json& products = field_of(table, "products");
  if (!products.is_object()) {
    fail(ErrorCode::kBadFormat, "products", "an object", products.type_name());
  }
  for (const auto& [key, product] : products.items()) {
    if (!product.is_object()) fail(ErrorCode::kBadFormat, key, "an object", product.type_name());
    candidates_.emplace(key, text_of(product, "candidate"));
  }
}

std::string_view Tuning::candidate(const GemmProblem& problem) const {
  if (candidates_.empty() || !is_contiguous(problem)) return "";
  const auto found = candidates_.find(tuning_key(problem.product));
  return found == candidates_.end() ? "" : std::string_view(found->second);
}

}  // namespace octofold::plan
