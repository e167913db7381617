// A folder for the files of a test.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace octofold::test {

namespace fs = std::filesystem;

/// A new, empty folder that goes with the object.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (fs::temp_directory_path() / "octofold-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = fs::canonical(name);
  }
  ~TestFolder() { fs::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  fs::path operator/(std::string_view name) const { return path_ / name; }
  const fs::path& path() const { return path_; }
  fs::path in() const { return path_ / "in.safetensors"; }
  fs::path out() const { return path_ / "out.safetensors"; }

  /// Names of all that is in it, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  fs::path path_;
};

}  // namespace octofold::test
