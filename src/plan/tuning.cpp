#include "plan/tuning.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "plan/problem_text.h"

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

std::string string_of(const json& object, const char* name) {
  const json& value = field_of(object, name);
  if (!value.is_string()) fail(ErrorCode::kBadFormat, name, "text", value.type_name());
  return value.get<std::string>();
}

std::int64_t number_of(const json& object, const char* name) {
  const json& value = field_of(object, name);
  if (!value.is_number_integer()) {
    fail(ErrorCode::kBadFormat, name, "a whole number", value.type_name());
  }
  return value.get<std::int64_t>();
}

std::string capability_of(const Gpu& gpu) {
  return core::format("{}.{}", gpu.compute_major, gpu.compute_minor);
}

void require_same(const char* field, std::string_view here, std::string_view theirs) {
  if (here != theirs) fail(ErrorCode::kUnsupported, field, here, theirs);
}

// Addresses count, and of a C whether it is out: these do not change which candidates there are.
bool is_contiguous(const GemmProblem& problem) {
  GemmProblem plain = as_allocated(problem);
  plain.c_is_out = problem.c_is_out;
  if (problem.product.form.c == Addend::kNone) plain.c_fits_tma = problem.c_fits_tma;
  return plain == problem;
}

struct Key {
  std::int64_t rows = 0;
  std::string rest{};
};

// "gemm: m 64, n 7168, …" as 64 and "gemm: m , n 7168, …".
Key split(std::string text) {
  constexpr std::string_view kRows = ": m ";
  const std::size_t begin = text.find(kRows) + kRows.size(), end = text.find(',', begin);
  Key key;
  std::from_chars(text.data() + begin, text.data() + end, key.rows);
  key.rest = std::move(text.erase(begin, end - begin));
  return key;
}

}  // namespace

Tuning::Tuning(std::string_view text, const Gpu& gpu, std::string_view gpu_name) {
  const json table = json::parse(text, nullptr, false);
  if (!table.is_object()) {
    fail(ErrorCode::kBadFormat, "text", "a JSON object",
         table.is_discarded() ? "no JSON" : table.type_name());
  }
  require_same("octofold", OCTOFOLD_VERSION, string_of(table, "octofold"));
  require_same("gpu", gpu_name, string_of(table, "gpu"));
  require_same("compute_capability", capability_of(gpu), string_of(table, "compute_capability"));
  require_same("multiprocessors", core::format("{}", gpu.multiprocessors),
               core::format("{}", number_of(table, "multiprocessors")));
  const json& products = field_of(table, "products");
  if (!products.is_object()) {
    fail(ErrorCode::kBadFormat, "products", "an object", products.type_name());
  }
  for (const auto& [key, product] : products.items()) {
    if (!product.is_object()) fail(ErrorCode::kBadFormat, key, "an object", product.type_name());
    std::string candidate = string_of(product, "candidate");
    const auto [rows, rest] = split(complete(key));
    const std::int64_t first =
        product.contains("rows_from") ? number_of(product, "rows_from") : rows;
    choices_[rest].push_back({first, rows, std::move(candidate)});
  }
}

std::string Tuning::text_of(const GemmProblem& problem) {
  return is_contiguous(problem) ? plan::text_of(problem) : "";
}

std::string Tuning::text_of(const WeightOnlyProblem& problem) {
  return as_allocated(problem) == problem ? plan::text_of(problem) : "";
}

std::string_view Tuning::candidate(const GemmProblem& problem) const {
  return choices_.empty() ? "" : find(text_of(problem));
}

std::string_view Tuning::candidate(const WeightOnlyProblem& problem) const {
  return choices_.empty() ? "" : find(text_of(problem));
}

std::string_view Tuning::find(std::string text) const {
  if (text.empty()) return "";
  const Key parts = split(std::move(text));
  const auto found = choices_.find(parts.rest);
  if (found == choices_.end()) return "";
  for (const auto& [first, last, candidate] : found->second) {
    if (first <= parts.rows && parts.rows <= last) return candidate;
  }
  return "";
}

std::size_t Tuning::size() const {
  std::size_t size = 0;
  for (const auto& [product, choices] : choices_) size += choices.size();
  return size;
}

std::string with_choices(std::string_view text, const Gpu& gpu, std::string_view gpu_name,
                         std::span<const MeasuredChoice> choices) {
  json table = text.empty() ? json{{"octofold", OCTOFOLD_VERSION},
                                   {"gpu", gpu_name},
                                   {"compute_capability", capability_of(gpu)},
                                   {"multiprocessors", gpu.multiprocessors}}
                            : json::parse(text);
  const auto rounded = [](double microseconds) { return std::round(1e3 * microseconds) / 1e3; };
  json& products = table["products"];
  for (const MeasuredChoice& choice : choices) {
    // Whoever wrote by hand may have left out what can be.
    for (auto it = products.begin(); it != products.end();) {
      it = complete(it.key()) == choice.problem ? products.erase(it) : std::next(it);
    }
    products[choice.problem] = {{"candidate", choice.candidate},
                                {"microseconds", rounded(choice.microseconds)},
                                {"planned_microseconds", rounded(choice.planned_microseconds)}};
  }
  return table.dump(1) + "\n";
}

std::string tuning_file_name(std::string_view gpu_name) {
  std::string name(gpu_name);
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name + ".json";
}

Tuning shipped_tuning(const Gpu& gpu, std::string_view gpu_name) try {
  const std::string_view text = shipped_table(tuning_file_name(gpu_name));
  return text.empty() ? Tuning() : Tuning(text, gpu, gpu_name);
} catch (const Error& error) {
  if (error.code() != ErrorCode::kUnsupported) throw;
  return {};  // a part of that GPU, or the GPU as an older one
}

}  // namespace octofold::plan
