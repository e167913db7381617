// Kernels that lie one after another in memory: found by what they are, whoever compiled them.
#include "jit/kernel_pack.h"

#include "jit/nvrtc.h"
#include "support/test.h"

namespace octofold::jit {
namespace {

using test::error_of;

const CacheKey kHeaders{1, 2};

Program program_of(std::string kernel) {
  return {.header = "kernels/a.h",
          .kernel = std::move(kernel),
          .architecture = "sm_90a",
          .description = "the kernel a"};
}

PackedKernel packed(std::string kernel, char fill, std::size_t size) {
  return {program_of(kernel),
          {.symbol = kernel, .image = std::vector<char>(size, fill), .resources = {168, 0, 0, 0}}};
}

std::string two() {
  const PackedKernel kernels[] = {packed("a<1>", 'x', 5000), packed("a<2>", 'y', 3)};
  return pack_of(kernels, kHeaders, 13);
}

TEST(KernelPackTest, FindsWhatWasPacked) {
  const std::string bytes = two();
  const KernelPack pack(bytes);
  EXPECT_EQ(pack.size(), 2u);
  EXPECT_EQ(pack.find(program_of("a<1>"), kHeaders), packed("a<1>", 'x', 5000).binary);
  EXPECT_EQ(pack.find(program_of("a<2>"), kHeaders), packed("a<2>", 'y', 3).binary);
}

TEST(KernelPackTest, OtherKernelsSourcesAndArchitecturesAreNotFound) {
  const std::string bytes = two();
  const KernelPack pack(bytes);
  EXPECT_EQ(pack.find(program_of("a<3>"), kHeaders), std::nullopt);
  EXPECT_EQ(pack.find(program_of("a<1>"), {1, 3}), std::nullopt);
  Program other = program_of("a<1>");
  other.architecture = "sm_120";
  EXPECT_EQ(pack.find(other, kHeaders), std::nullopt);
}

TEST(KernelPackTest, ADriverOfAnOlderCudaTakesNone) {
  const std::string bytes = two();
  const KernelPack pack(bytes);
  set_newest_cuda(12);
  const std::optional<Binary> too_new = pack.find(program_of("a<1>"), kHeaders);
  set_newest_cuda(13);
  EXPECT_EQ(too_new, std::nullopt);
  EXPECT_NE(pack.find(program_of("a<1>"), kHeaders), std::nullopt);
}

TEST(KernelPackTest, NoBytesAreNoKernels) {
  EXPECT_EQ(KernelPack("").size(), 0u);
  EXPECT_TRUE(KernelPack("").entries().empty());
  EXPECT_EQ(KernelPack("").find(program_of("a<1>"), kHeaders), std::nullopt);
}

TEST(KernelPackTest, ListsAll) {
  const std::string bytes = two();
  std::vector<std::string> symbols;
  for (const CacheEntry& entry : KernelPack(bytes).entries()) {
    symbols.push_back(entry.binary.symbol);
    EXPECT_EQ(entry.description, "the kernel a");
    EXPECT_EQ(entry.architecture, "sm_90a");
  }
  EXPECT_THAT(symbols, testing::UnorderedElementsAre("a<1>", "a<2>"));
}

TEST(KernelPackTest, DamageIsNoKernel) {
  const std::string bytes = two();
  std::string changed = bytes;
  changed[bytes.size() / 2] ^= 1;
  for (std::string_view damaged :
       {std::string_view(bytes).substr(0, 1), std::string_view(bytes).substr(0, bytes.size() - 1),
        std::string_view(changed), std::string_view("no pack at all")}) {
    EXPECT_THAT(error_of([&] { KernelPack{damaged}; }, ErrorCode::kInternal),
                HasSubstr("precompiled kernels of the library are damaged: "));
  }
}

}  // namespace
}  // namespace octofold::jit
