// The kernels that a test compiles: all that it asks for, or a fixed sample of them.
#pragma once

#include <queue>

#include "cuda/kernel_headers.h"
#include "jit/kernel_cache.h"
#include "support/test.h"

namespace octofold::test {

/// If OCTOFOLD_KERNEL_SAMPLE is set, tests run twice (--gtest_repeat=2): the first time they name
/// their kernels, the second time they compile a few of these. Of each family's kernels the sample
/// has every pair of choices that one of them has (enumerators, truth values, the architecture),
/// and every number. It follows from the names alone, so it changes only where kernels do.
class KernelSample : public testing::EmptyTestEventListener {
 public:
  /// True if the program is to be compiled now.
  bool takes(const jit::Program& program) {
    std::string name = program.architecture + " " + program.kernel;
    if (is_chosen_) return chosen_.contains(name);
    named_.insert(std::move(name));
    return false;
  }

 private:
  using Choices = std::set<std::size_t>;

  void OnTestIterationEnd(const testing::UnitTest&, int) override {
    if (is_chosen_) return;
    choose();
    is_chosen_ = true;
    std::printf("%zu of %zu kernels\n", chosen_.size(), named_.size());
    EXPECT_FALSE(chosen_.empty()) << "no test named a kernel";
  }

  // Greedy: always the kernel with the most that no other has yet. What a kernel adds only becomes
  // less, so it is counted again when it comes first.
  void choose() {
    std::vector<std::pair<std::string, Choices>> kernels;
    std::priority_queue<std::pair<std::size_t, std::size_t>> queue;
    for (const std::string& name : named_) {
      kernels.emplace_back(name, choices_of(name));
      queue.emplace(kernels.back().second.size(), kernels.size() - 1);
    }
    const std::size_t half = std::string_view(std::getenv("OCTOFOLD_KERNEL_SAMPLE")) == "1/2";
    std::size_t sampled = 0;
    Choices covered;
    while (!queue.empty()) {
      const auto [claimed, index] = queue.top();
      queue.pop();
      const auto& [name, choices] = kernels[index];
      const auto adds = static_cast<std::size_t>(std::ranges::count_if(
          choices, [&](std::size_t choice) { return !covered.contains(choice); }));
      if (adds == 0) continue;
      if (adds < claimed) {
        queue.emplace(adds, index);
        continue;
      }
      if (sampled++ % 2 == half) chosen_.insert(name);
      covered.insert(choices.begin(), choices.end());
    }
  }

  // "sm_90a octofold::f<…{.form = {.a = {.type = decltype(…)(1)}}, .swapped = true}>": fields by
  // their way through the braces.
  static Choices choices_of(const std::string& name) {
    const std::size_t space = name.find(' ');
    const std::string family = name.substr(space, name.find('{') - space);
    std::vector<std::string> path{family}, choices{family, family + name.substr(0, space)};
    Choices result;
    for (std::size_t at = 0; at < name.size(); ++at) {
      if (name[at] == '}') path.pop_back();
      if (name[at] != '.' || (name[at - 1] != '{' && name[at - 1] != ' ')) continue;
      const std::size_t end_of_field = name.find(" = ", at), value = end_of_field + 3;
      const std::string field = path.back() + name.substr(at, end_of_field - at);
      if (name[value] == '{') {
        path.push_back(field);
        continue;
      }
      const std::string text =
          field + "=" + name.substr(value, name.find_first_of(",}", value) - value);
      if (std::isdigit(static_cast<unsigned char>(name[value])) != 0) {
        result.insert(std::hash<std::string>{}(text));
      } else {
        choices.push_back(text);
      }
    }
    for (const std::string& one : choices) {
      for (const std::string& other : choices) {
        if (one <= other) result.insert(std::hash<std::string>{}(one + " " + other));
      }
    }
    return result;
  }

  std::set<std::string> named_, chosen_;
  bool is_chosen_ = false;
};

/// The sample of this process, or null. It counts from before the first test on, so that a process
/// whose tests name no kernel fails.
inline KernelSample* const kKernelSample = [] {
  auto* sample = std::getenv("OCTOFOLD_KERNEL_SAMPLE") != nullptr ? new KernelSample : nullptr;
  if (sample != nullptr) testing::UnitTest::GetInstance()->listeners().Append(sample);
  return sample;  // GoogleTest deletes it
}();

/// The kernel's binary, or nothing where the sample leaves it out.
inline std::optional<jit::Binary> compiled(const jit::Program& program) {
  if (kKernelSample != nullptr && !kKernelSample->takes(program)) return std::nullopt;
  return jit::compile_cached(program, cuda::kernel_headers());
}

}  // namespace octofold::test
