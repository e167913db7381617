// Mutates valid headers for OCTOFOLD_FUZZ_SECONDS (default 5): whatever comes, the reader gives one
// of its own errors or a header that keeps its promises.
#include <fmt/format.h>

#include "checkpoints.h"
#include "model/safetensors.h"
#include "support/test.h"

namespace octofold::model {
namespace {

const std::string kSeeds[] = {
    R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"BF16","shape":[8],"data_offsets":[16,32]}})",
    R"({"__metadata__":{"format":"pt","é\u00e9\n":"x"},)"
    R"("w":{"data_offsets":[0,32],"shape":[4,8],"dtype":"F8_E4M3"}}   )",
    R"({"f4":{"dtype":"F4","shape":[1,64],"data_offsets":[0,32]},)"
    R"("none":{"dtype":"C64","shape":[0,3],"data_offsets":[32,32]}})",
};
const std::string_view kData = "0123456789abcdefghijklmnopqrstuv";
// Pieces that may be put into a header.
const std::vector<std::string> kPieces = [] {
  std::istringstream all(R"({ } [ ] , : " \u 0 -1 1.5 1e9 null 16 32 4294967296 "dtype" "shape"
                            9223372036854775807 18446744073709551616 "data_offsets"
                            "__metadata__":{} "F32" "F6_E2M3")"
                         " \xC3 \xED\xA0\x80");
  return std::vector<std::string>(std::istream_iterator<std::string>(all), {});
}();

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string header() {
    std::string text = kSeeds[below(std::size(kSeeds))];
    for (std::size_t i = below(4); i-- > 0;) mutate(text);
    return text;
  }

  /// A file of this header; now and then with a length or an end that does not fit.
  std::string file(const std::string& header) {
    std::string bytes = test::safetensors_bytes(header, kData);
    if (below(16) == 0) bytes[below(8)] = static_cast<char>(below(256));
    if (below(16) == 0) bytes.resize(below(bytes.size() + 1));
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

  void mutate(std::string& text) {
    if (text.empty()) return;
    const std::size_t at = below(text.size());
    switch (below(6)) {
      case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
      case 1: text.resize(at); break;
      case 2: text.erase(at, below(8)); break;
      case 3: text.insert(at, kPieces[below(kPieces.size())]); break;
      case 4: {  // splice: the head of one header, the tail of another
        const std::string& other = kSeeds[below(std::size(kSeeds))];
        text = text.substr(0, at) + other.substr(below(other.size()));
        break;
      }
      default: {  // replace a number
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        text.replace(digit, text.find_first_not_of("0123456789", digit) - digit,
                     std::to_string(below(3) == 0 ? random_() : below(40)));
        break;
      }
    }
  }

  std::mt19937_64 random_;
};

/// Checks what SafetensorsReader promises of a file that it accepts, computed anew.
void check_promises(const SafetensorsReader& reader) {
  std::int64_t covered = 0;
  for (const TensorInfo& tensor : reader.tensors()) {
    EXPECT_EQ(tensor.begin, covered);
    auto bits = static_cast<long double>(bits_of(tensor.dtype));
    for (const std::int64_t size : tensor.shape) {
      EXPECT_GE(size, 0);
      bits *= static_cast<long double>(size);
    }
    EXPECT_EQ(bits, static_cast<long double>(tensor.byte_count()) * 8);
    covered = tensor.end;
    std::vector<std::byte> bytes(as_size(tensor.byte_count()));
    reader.read(tensor, 0, bytes);
  }
  EXPECT_EQ(covered, reader.data_bytes());
}

TEST(SafetensorsFuzz, OnlyOwnErrorsOrAValidHeader) {
  const char* text = std::getenv("OCTOFOLD_FUZZ_SECONDS");
  const std::chrono::duration<double> budget(text != nullptr ? std::atof(text) : 5.0);
  test::Random random;
  Mutator mutator(random());
  const test::TestFolder folder;
  const auto path = folder / "fuzz.safetensors";

  std::int64_t accepted = 0;
  std::int64_t refused = 0;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < budget) {
    const std::string bytes = mutator.file(mutator.header());
    SCOPED_TRACE(
        fmt::format("case {}, file {}", accepted + refused, testing::PrintToString(bytes)));
    test::write_file(path, bytes);
    try {
      check_promises(SafetensorsReader(path));
      ++accepted;
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kBadFormat || error.code() == ErrorCode::kIo);
      test::expect_contains(error.what(), path.string());
      ++refused;
    }
    if (HasFailure()) break;
  }
  // The mutations are worth something only if they fall on both sides.
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
  RecordProperty("cases", std::to_string(accepted + refused));
}

}  // namespace
}  // namespace octofold::model
