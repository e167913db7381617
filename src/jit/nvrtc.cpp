#include "jit/nvrtc.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fmt/ranges.h>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "core/log.h"
#include "core/options.h"
#include "core/shared_object.h"

namespace octofold::jit {
namespace {

// Older versions reject some of the kernels or spill registers.
constexpr std::pair kOldest{12, 8};

// Functions without an execution space are constexpr ones that the host shares, which the device
// calls too. Multiply-adds may be fused; casts, which are specified to the bit, are written so that
// none can be.
constexpr const char* kOptions[] = {"--std=c++20", "--device-as-default-execution-space",
                                    "--fmad=true", "--ptxas-options=--verbose"};

constexpr const char* kHowToGet =
    "`pip install nvidia-cuda-nvrtc`, or name the file in OCTOFOLD_NVRTC";

// From NVRTC's documentation: nvrtcResult is an int, 0 is success; nvrtcProgram a pointer.
using ProgramHandle = struct OpaqueProgram*;

struct Nvrtc {
  std::string file;
  int major = 0;
  int minor = 0;

  int (*create_program)(ProgramHandle*, const char* source, const char* name, int headers,
                        const char* const* texts, const char* const* names) = nullptr;
  int (*destroy_program)(ProgramHandle*) = nullptr;
  int (*add_name_expression)(ProgramHandle, const char*) = nullptr;
  int (*compile_program)(ProgramHandle, int options, const char* const*) = nullptr;
  int (*get_log_size)(ProgramHandle, std::size_t*) = nullptr;
  int (*get_log)(ProgramHandle, char*) = nullptr;
  int (*get_cubin_size)(ProgramHandle, std::size_t*) = nullptr;
  int (*get_cubin)(ProgramHandle, char*) = nullptr;
  int (*get_ptx_size)(ProgramHandle, std::size_t*) = nullptr;
  int (*get_ptx)(ProgramHandle, char*) = nullptr;
  int (*get_lowered_name)(ProgramHandle, const char* expression, const char** name) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
};

// Either the library or why not.
struct Search {
  std::optional<Nvrtc> found;
  std::string reason;
};

// The compiler loads its second half by name. The wheels have it beside the first half, and those
// of CUDA 13.0 do not tell the dynamic linker so: it is found once it is open.
void open_builtins_beside(const Nvrtc& nvrtc) {
  const std::filesystem::path file(nvrtc.file);
  if (!file.has_parent_path()) return;
  const std::string name = core::format("libnvrtc-builtins.so.{}.{}", nvrtc.major, nvrtc.minor);
  const core::SharedObject stays_open(file.parent_path() / name);
}

Search open_nvrtc(const std::string& file, const core::SharedObject& library) {
  if (!library.is_open()) return {{}, library.error()};
  Nvrtc nvrtc{.file = file};
  auto* version = library.find<int(int*, int*)>("nvrtcVersion");
  if (version == nullptr || version(&nvrtc.major, &nvrtc.minor) != 0) {
    return {{}, core::format("{} is not NVRTC: it lacks nvrtcVersion", file)};
  }
  if (std::pair(nvrtc.major, nvrtc.minor) < kOldest) {
    return {{},
            core::format("{} is NVRTC {}.{}, expected {}.{} or newer", file, nvrtc.major,
                         nvrtc.minor, kOldest.first, kOldest.second)};
  }
  const auto find = [&](auto& function, const char* symbol) {
    function =
        library.find<std::remove_pointer_t<std::remove_reference_t<decltype(function)>>>(symbol);
    return function != nullptr;
  };
  const bool complete =
      find(nvrtc.create_program, "nvrtcCreateProgram") &&
      find(nvrtc.destroy_program, "nvrtcDestroyProgram") &&
      find(nvrtc.add_name_expression, "nvrtcAddNameExpression") &&
      find(nvrtc.compile_program, "nvrtcCompileProgram") &&
      find(nvrtc.get_log_size, "nvrtcGetProgramLogSize") &&
      find(nvrtc.get_log, "nvrtcGetProgramLog") &&
      find(nvrtc.get_cubin_size, "nvrtcGetCUBINSize") && find(nvrtc.get_cubin, "nvrtcGetCUBIN") &&
      find(nvrtc.get_ptx_size, "nvrtcGetPTXSize") && find(nvrtc.get_ptx, "nvrtcGetPTX") &&
      find(nvrtc.get_lowered_name, "nvrtcGetLoweredName") &&
      find(nvrtc.get_error_string, "nvrtcGetErrorString");
  if (!complete) return {{}, core::format("{} lacks functions of NVRTC 12", file)};
  open_builtins_beside(nvrtc);
  return {nvrtc, ""};
}

std::mutex candidates_mutex;
std::vector<std::string> candidates;
std::atomic<int> newest_major = std::numeric_limits<int>::max();

bool is_too_new(const Nvrtc& nvrtc) { return nvrtc.major > newest_cuda(); }

// In this order.
std::vector<std::string> files_to_try() {
  if (const std::string& chosen = core::options().nvrtc_library; !chosen.empty()) return {chosen};
  const std::lock_guard lock(candidates_mutex);
  std::vector<std::string> files = candidates;
  files.insert(files.end(), {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  return files;
}

Search search_nvrtc() {
  std::vector<std::string> reasons;
  for (const std::string& file : files_to_try()) {
    Search search = open_nvrtc(file, core::SharedObject(file));
    if (search.found && !is_too_new(*search.found)) return search;
    if (search.found) {
      search.reason =
          core::format("{} is NVRTC {}.{}, whose kernels a driver of CUDA {} does not load", file,
                       search.found->major, search.found->minor, newest_cuda());
    }
    reasons.push_back(search.reason);
  }
  return {{}, core::format("no NVRTC: {}", fmt::join(reasons, "; "))};
}

const Nvrtc& nvrtc() {
  static const Nvrtc instance = [] {  // a throwing initializer is tried again at the next call
    const Search search = search_nvrtc();
    if (!search.found) {
      core::fail(ErrorCode::kUnavailable, "run-time compilation: {}. To get it: {}", search.reason,
                 kHowToGet);
    }
    return *search.found;
  }();
  return instance;
}

// The one that compiles. What others in the process have NVRTC compile, as cuDNN does, can change
// the code of whoever compiles next: kernels of attention spilled and took 1.5 times as long
// (docs/notes/host.md). So this one is nobody else's.
const Nvrtc& own_nvrtc() {
  static const Nvrtc instance = [] {
    const std::string& file = nvrtc().file;
    const Search search = open_nvrtc(file, core::SharedObject::own_instance(file));
    if (search.found) return *search.found;
    core::log(LogLevel::kWarning,
              "run-time compilation: {} cannot be copied ({}), so it is shared with others in this "
              "process, which may make kernels slower",
              file, search.reason);
    return nvrtc();
  }();
  return instance;
}

// A program under compilation; every failure is one of ours or NVRTC's, never of the user's input.
class Compilation {
 public:
  Compilation(const Program& program, std::span<const Header> headers) : program_(program) {
    // Header texts are parts of one array without terminators between them: C wants copies.
    std::vector<std::string> texts, names;
    std::vector<const char*> text_pointers, name_pointers;
    for (const Header& header : headers) {
      texts.emplace_back(header.text);
      names.emplace_back(header.name);
    }
    for (const std::string& text : texts) text_pointers.push_back(text.c_str());
    for (const std::string& name : names) name_pointers.push_back(name.c_str());
    const std::string source = core::format("#include \"{}\"\n", program.header);
    check(nvrtc_.create_program(&handle_, source.c_str(), "octofold.cu",
                                static_cast<int>(headers.size()), text_pointers.data(),
                                name_pointers.data()));
    check(nvrtc_.add_name_expression(handle_, program.kernel.c_str()));
  }
  ~Compilation() { nvrtc_.destroy_program(&handle_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  Binary run() {
    const std::string architecture = core::format("--gpu-architecture={}", program_.architecture);
    std::vector<const char*> options = {architecture.c_str()};
    options.insert(options.end(), std::begin(kOptions), std::end(kOptions));
    const int result =
        nvrtc_.compile_program(handle_, static_cast<int>(options.size()), options.data());
    const std::string log = read_log();
    if (result != 0) {
      core::log(LogLevel::kWarning, "compiling {} ({}):\n{}", program_.description, program_.kernel,
                log);
      core::fail(ErrorCode::kInternal, "compiling the kernel '{}' for {} failed ({}): {}",
                 program_.description, program_.architecture, nvrtc_.get_error_string(result),
                 first_lines(log));
    }
    const char* symbol = nullptr;
    check(nvrtc_.get_lowered_name(handle_, program_.kernel.c_str(), &symbol));
    const bool is_ptx = program_.architecture.starts_with("compute_");
    const auto get_size = is_ptx ? nvrtc_.get_ptx_size : nvrtc_.get_cubin_size;
    const auto get = is_ptx ? nvrtc_.get_ptx : nvrtc_.get_cubin;
    std::size_t size = 0;
    check(get_size(handle_, &size));
    Binary binary{.symbol = symbol, .image = std::vector<char>(size), .resources = parse(log)};
    check(get(handle_, binary.image.data()));
    return binary;
  }

 private:
  void check(int result) const {
    if (result == 0) return;
    core::fail(ErrorCode::kInternal, "compiling the kernel '{}' for {}: {}", program_.description,
               program_.architecture, nvrtc_.get_error_string(result));
  }

  std::string read_log() const {
    std::size_t size = 0;
    if (nvrtc_.get_log_size(handle_, &size) != 0 || size <= 1) return "";
    std::string log(size, '\0');
    nvrtc_.get_log(handle_, log.data());
    log.resize(size - 1);  // without the terminator
    return log;
  }

  static std::string first_lines(const std::string& log) {
    std::size_t end = 0;
    for (int line = 0; line < 4 && end != log.npos; ++line) end = log.find('\n', end + 1);
    return log.substr(0, end);
  }

  static int number(const std::ssub_match& digits) {
    const std::string text = digits.str();
    int value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  // "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
  // "Used 168 registers", "1024 bytes smem".
  static ResourceUse parse(const std::string& log) {
    static const std::regex memory(
        R"((\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads)");
    static const std::regex registers(R"(Used (\d+) registers)");
    static const std::regex shared(R"((\d+) bytes smem)");
    ResourceUse use;
    std::smatch match;
    if (std::regex_search(log, match, memory)) {
      use.stack_bytes = number(match[1]);
      use.spill_store_bytes = number(match[2]);
      use.spill_load_bytes = number(match[3]);
    }
    if (std::regex_search(log, match, registers)) use.registers = number(match[1]);
    if (std::regex_search(log, match, shared)) use.shared_bytes = number(match[1]);
    return use;
  }

  const Nvrtc& nvrtc_ = own_nvrtc();
  const Program& program_;
  ProgramHandle handle_ = nullptr;
};

}  // namespace

void set_nvrtc_candidates(std::vector<std::string> paths) {
  const std::lock_guard lock(candidates_mutex);
  candidates = std::move(paths);
}

void set_newest_cuda(int major) { newest_major = major; }

int newest_cuda() { return newest_major; }

int compiler_cuda() { return nvrtc().major; }

Component probe_nvrtc() {
  const Search search = search_nvrtc();
  if (!search.found) return {.available = false, .detail = search.reason};
  return {.available = true,
          .detail = core::format("NVRTC {}.{} ({})", search.found->major, search.found->minor,
                                 search.found->file)};
}

std::string compiler_identity() {
  // The first of several may be too old or too new: then it takes opening to know which one
  // compiles.
  const std::string first = files_to_try().front();
  const bool is_sure =
      newest_cuda() >= 13 && (!core::options().nvrtc_library.empty() || first.ends_with(".so.13"));
  const std::string& file = is_sure ? first : nvrtc().file;
  std::string build = file.find('/') != file.npos ? core::build_id(file) : "";
  if (build.empty()) build = core::format("{}.{}", nvrtc().major, nvrtc().minor);
  // "own": not what one that others share has left on disk.
  return core::format("{} own {}", build, fmt::join(kOptions, " "));
}

Binary compile(const Program& program, std::span<const Header> headers) {
  return Compilation(program, headers).run();
}

}  // namespace octofold::jit
