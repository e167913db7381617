#include "plan/tuning.h"

#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

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

std::int64_t number_of(const json& object, const char* name) {
  const json& value = field_of(object, name);
  if (!value.is_number_integer()) {
    fail(ErrorCode::kBadFormat, name, "a whole number", value.type_name());
  }
  return value.get<std::int64_t>();
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

struct Key {
  std::int64_t rows = 0;
  std::string_view rest{};
};

// "gemm: m 64, n 7168, …" as 64 and ", n 7168, …".
std::optional<Key> split(std::string_view key) {
  constexpr std::string_view kStart = "gemm: m ";
  if (!key.starts_with(kStart)) return std::nullopt;
  key.remove_prefix(kStart.size());
  Key parts;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), parts.rows);
  if (error != std::errc()) return std::nullopt;
  parts.rest = key.substr(static_cast<std::size_t>(end - key.data()));
  return parts;
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
               core::format("{}", number_of(table, "multiprocessors")));
  const json& products = field_of(table, "products");
  if (!products.is_object()) {
    fail(ErrorCode::kBadFormat, "products", "an object", products.type_name());
  }
  for (const auto& [key, product] : products.items()) {
    if (!product.is_object()) fail(ErrorCode::kBadFormat, key, "an object", product.type_name());
    std::string candidate = text_of(product, "candidate");
    const std::optional<Key> parts = split(key);
    if (!parts) fail(ErrorCode::kBadFormat, "products", "keys as 'gemm: m 64, n 7168, …'", key);
    const auto [rows, rest] = *parts;
    const std::int64_t first =
        product.contains("rows_from") ? number_of(product, "rows_from") : rows;
    choices_[std::string(rest)].push_back({first, rows, std::move(candidate)});
  }
}

std::string_view Tuning::candidate(const GemmProblem& problem) const {
  if (choices_.empty() || !is_contiguous(problem)) return "";
  const std::string key = tuning_key(problem.product);
  const auto found = choices_.find(split(key)->rest);
  if (found == choices_.end()) return "";
  for (const auto& [first, last, candidate] : found->second) {
    if (first <= problem.product.m && problem.product.m <= last) return candidate;
  }
  return "";
}

std::size_t Tuning::size() const {
  std::size_t size = 0;
  for (const auto& [product, choices] : choices_) size += choices.size();
  return size;
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
