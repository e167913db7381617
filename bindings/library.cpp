// The library itself: what it is, and what holds for all of it.
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <utility>

#include "octofold/batch_invariant.h"
#include "octofold/capabilities.h"
#include "octofold/info.h"
#include "octofold/kernel_cache.h"
#include "octofold/log.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using Fields = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

Fields fields_of(const Component& component) {
  return {{"available", component.available}, {"detail", tvm::ffi::String(component.detail)}};
}

tvm::ffi::Map<tvm::ffi::String, Fields> by_name(const std::vector<OperationInfo>& operations) {
  tvm::ffi::Map<tvm::ffi::String, Fields> named;
  for (const OperationInfo& operation : operations) {
    named.Set(operation.name, fields_of(operation.support));
  }
  return named;
}

Fields fields_of(const GpuInfo& gpu) {
  return {{"index", gpu.index},
          {"name", tvm::ffi::String(gpu.name)},
          {"compute_major", gpu.compute_major},
          {"compute_minor", gpu.compute_minor},
          {"multiprocessors", gpu.multiprocessors},
          {"memory_bytes", gpu.memory_bytes},
          {"backend", fields_of(gpu.backend)},
          {"operations", by_name(gpu.operations)}};
}

Fields fields_of(const CapabilityTarget& target) {
  tvm::ffi::Array<int64_t> gpus;
  for (const std::int32_t gpu : target.gpus) gpus.push_back(gpu);
  return {{"name", tvm::ffi::String(target.name)},
          {"examples", tvm::ffi::String(target.examples)},
          {"gpus", gpus}};
}

Fields fields_of(const CapabilityRow& row) {
  tvm::ffi::Array<Fields> operands, supports;
  for (const CapabilityOperand& operand : row.operands) {
    operands.push_back({{"name", tvm::ffi::String(operand.name)},
                        {"form", tvm::ffi::String(operand.form)},
                        {"most_rows", operand.most_rows}});
  }
  for (const Support& support : row.support) {
    supports.push_back({{"how", tvm::ffi::String(std::string(name(support.how)))},
                        {"why_not", tvm::ffi::String(support.why_not)}});
  }
  return {{"operation", tvm::ffi::String(row.operation)},
          {"kind", tvm::ffi::String(row.kind)},
          {"operands", operands},
          {"support", supports}};
}

template <typename Item>
tvm::ffi::Array<Fields> all_fields(const std::vector<Item>& items) {
  tvm::ffi::Array<Fields> all;
  for (const Item& item : items) all.push_back(fields_of(item));
  return all;
}

}  // namespace

// Maps with the fields' own names, which python/octofold/_info.py turns into dataclasses.
Fields info() {
  const Info info = octofold::info();
  return {{"version", tvm::ffi::String(info.version)},
          {"cpu_threads", info.cpu_threads},
          {"cpu", fields_of(info.cpu)},
          {"driver", fields_of(info.driver)},
          {"nvrtc", fields_of(info.nvrtc)},
          {"gpus", all_fields(info.gpus)}};
}

// The capabilities with the names that _capabilities.py reads.
Fields capabilities() {
  const Capabilities matrix = octofold::capabilities();
  return {{"targets", all_fields(matrix.targets)},
          {"rows", all_fields(matrix.rows)},
          {"at_hand", tvm::ffi::String(matrix.at_hand)}};
}

// Costs nothing, while info() probes the driver.
tvm::ffi::String version() { return OCTOFOLD_VERSION; }

void set_nvrtc_candidates(tvm::ffi::Array<tvm::ffi::String> files) {
  std::vector<std::string> paths;
  for (const tvm::ffi::String& file : files) paths.emplace_back(view_of(file));
  octofold::set_nvrtc_candidates(std::move(paths));
}

OCTOFOLD_EXPORT(capabilities)
OCTOFOLD_EXPORT(info)
OCTOFOLD_EXPORT(set_nvrtc_candidates)
OCTOFOLD_EXPORT(version)

void set_batch_invariant(bool enabled) { octofold::set_batch_invariant(enabled); }

bool is_batch_invariant() { return octofold::is_batch_invariant(); }

OCTOFOLD_EXPORT(set_batch_invariant)
OCTOFOLD_EXPORT(is_batch_invariant)

namespace {

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
  }
  return "?";
}

}  // namespace

using PythonLogHandler = tvm::ffi::TypedFunction<void(tvm::ffi::String, tvm::ffi::String)>;

void set_log_handler(tvm::ffi::Optional<PythonLogHandler> handler) {
  if (!handler) return octofold::set_log_handler({});
  octofold::set_log_handler(
      [function = *std::move(handler)](LogLevel level, std::string_view text) {
        function(name_of(level), as_utf8(text));
      });
}

OCTOFOLD_EXPORT(set_log_handler)

}  // namespace octofold::bindings
