#include "jit/compile_all.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/options.h"
#include "jit/kernel_cache.h"

namespace octofold::jit {
namespace {

class Compilations {
 public:
  Compilations(std::span<const Program> programs, std::span<const Header> headers)
      : programs_(programs), headers_(headers) {}

  template <typename Tell>
  CompileReport run(Tell&& tell) {
    const std::size_t threads =
        std::min(programs_.size(), static_cast<std::size_t>(core::options().num_threads));
    std::vector<std::jthread> workers;  // joined when it ends, however that is
    const Stop stop{*this};
    try {
      for (std::size_t i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      if (workers.empty()) work();  // no threads to be had
    }
    for (std::size_t told = 0; told < programs_.size();) {
      told = wait_for_more_than(told);
      tell(static_cast<std::int64_t>(told));
    }
    return report_;
  }

 private:
  // Declared after the workers, so that they are told to stop before they are joined.
  struct Stop {
    Compilations& all;
    ~Stop() { all.next_ = all.programs_.size(); }
  };

  void work() {
    for (std::size_t i = next_++; i < programs_.size(); i = next_++) {
      bool found = false;
      std::exception_ptr fault;
      try {
        found = is_cached(programs_[i], headers_);
        if (!found) compile_and_keep(programs_[i]);
      } catch (...) {
        fault = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (fault) {
        fault_ = fault;
      } else {
        ++(found ? report_.found : report_.compiled);
      }
      changed_.notify_one();
      if (fault) return;
    }
  }

  void compile_and_keep(const Program& program) const {
    compile_cached(program, headers_);
    if (is_cached(program, headers_)) return;
    core::fail(ErrorCode::kIo, "kernels cannot be kept in '{}'", core::options().cache_folder);
  }

  std::size_t wait_for_more_than(std::size_t told) {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return static_cast<std::size_t>(report_.found + report_.compiled); };
    changed_.wait(lock, [&] { return fault_ || done() > told; });
    if (fault_) std::rethrow_exception(fault_);
    return done();
  }

  std::span<const Program> programs_;
  std::span<const Header> headers_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  CompileReport report_;
  std::exception_ptr fault_;
};

}  // namespace

CompileReport compile_all(std::span<const Program> programs, std::span<const Header> headers,
                          const std::function<void(std::int64_t done)>& tell) {
  return Compilations(programs, headers).run([&](std::int64_t done) {
    if (tell) tell(done);
  });
}

}  // namespace octofold::jit
