// The rows of tests/cases/gemm.csv.
#pragma once

#include <fstream>

#include "octofold/types.h"

#include "support/test.h"

namespace octofold::test {

struct GemmCase {
  std::string name;
  std::int64_t m, n, k;
  DType a_dtype, b_dtype;
  Granularity granularity_a, granularity_b;
  DType d_dtype;
  std::string c;     // none, same, float32, in_place
  std::string bias;  // none, same, float32
  std::int64_t row_padding;
  bool power_of_two;

  friend std::ostream& operator<<(std::ostream& out, const GemmCase& self) {
    return out << self.name;
  }
};

inline std::vector<GemmCase> read_gemm_cases(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw std::runtime_error("cannot read " + path);
  std::vector<GemmCase> cases;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    const auto next = [&fields, &line] {
      std::string field;
      if (!std::getline(fields, field, ',')) throw std::runtime_error("short row: " + line);
      return field;
    };
    GemmCase row;
    row.name = next();
    row.m = std::stoll(next());
    row.n = std::stoll(next());
    row.k = std::stoll(next());
    row.a_dtype = parse_dtype(next());
    row.b_dtype = parse_dtype(next());
    row.granularity_a = parse_granularity(next());
    row.granularity_b = parse_granularity(next());
    row.d_dtype = parse_dtype(next());
    row.c = next();
    row.bias = next();
    row.row_padding = std::stoll(next());
    row.power_of_two = next() == "1";
    cases.push_back(row);
  }
  return cases;
}

}  // namespace octofold::test
