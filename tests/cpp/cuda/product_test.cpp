// Products of all kinds on their way to the GPU: each is prepared once, named ones are found by
// their names, and those that no kernel takes are refused. The results of the kernels are tested on
// a GPU.
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "kernels/sm90/config/checks.h"
#include "support/gpu_product.h"
#include "support/log.h"
#include "support/product_problems.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::Work;
using test::address;
using test::product;

constexpr const char* kTile = "128x128.w2.c1x1x1.b1.early";

// Products on the fake GPU.
class ProductTest : public FakeGpuTest {
 protected:
  void multiply(core::Product product, std::string_view candidate = {}, Stream stream = {}) {
    product.candidate = candidate;
    cuda::multiply(runtime().device(0), product, stream);
  }
  std::string refusal(const core::Product& product, std::string_view candidate = {},
                      ErrorCode code = ErrorCode::kUnsupported) {
    return error_of([&] { multiply(product, candidate); }, code);
  }
  const fake::Launch& last() { return state().launches.back(); }
  config::Sm90GemmParams last_params() { return last().params_as<config::Sm90GemmParams>(); }
  std::vector<fake::TensorMapCall>& maps() { return state().tensor_maps; }

  const test::Log logged_;
  const std::vector<std::string>& log_ = logged_.messages;
};

struct Kind {
  const char* name;
  const char* operation;
  core::Product (*make)(std::int64_t m, std::int64_t n, std::int64_t k);
  const char* candidate;
  const char* other_candidate;  ///< of dense products alone
};

template <Work kWork>
core::Product of_groups(std::int64_t m, std::int64_t n, std::int64_t k) {
  return test::grouped_product(kWork, m, n, k);
}

constexpr const char* kSplit = "64x16.swapped.w1.c1x1x2.b3";
constexpr const char* kSwapped = "64x16.swapped.w1.c1x1x1.b1";
const Kind kKinds[] = {
    {"Dense", "gemm", product, kSwapped, "1x1"},
    {"Cast", "gemm", test::cast_product, "64x8.swapped.w1.c1x1x2.b2", "128x128.w2.c1x1x1.b1.early"},
    {"Gated", "gated_gemm", test::gated_product, "128x128.w2.c2x1x1.b1.early", kSplit},
    {"GroupsOfRows", "grouped_gemm", of_groups<Work::kGroupedRows>, kSwapped, kSplit},
    {"MaskedGroups", "grouped_gemm", of_groups<Work::kMaskedRows>, kSwapped, kSplit},
    {"GroupsOfDepth", "grouped_gemm", of_groups<Work::kGroupedDepth>, kSwapped, kSplit},
    {"GatedGroups", "gated_gemm", test::grouped_gated_product, "128x128.w2.c1x1x1.b1.early",
     kSplit}};

class AnyProductTest : public ProductTest, public testing::WithParamInterface<Kind> {
 protected:
  core::Product make() const { return GetParam().make(200, 512, 1280); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, AnyProductTest, testing::ValuesIn(kKinds),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(AnyProductTest, IsPreparedOnce) {
  core::Product product = make();
  for (int i = 0; i < 3; ++i) {
    product.a.data.data = address(0xA0000000u + 0x100000u * i);
    product.out.data = address(0xB0000000u + 0x100000u * i);
    if (product.groups.numbers != nullptr) product.groups.numbers = test::kNumbers + 8 * i;
    multiply(product);
    const config::Sm90GemmParams params = last_params();
    EXPECT_EQ(params.out, product.out.data);
    EXPECT_EQ(params.work.numbers, product.groups.numbers);
    EXPECT_TRUE(params.rows.data == product.a.data.data ||
                params.columns.data == product.a.data.data);
  }
  EXPECT_EQ(compilations_, 1);
  product.b.data.dtype = product.b.data.dtype == DType::kE4M3 ? DType::kE5M2 : DType::kE4M3;
  multiply(product);
  EXPECT_EQ(compilations_, 2);
  cuda::multiply(runtime().device(1), product, {});
  EXPECT_EQ(compilations_, 3);
  EXPECT_EQ(last().device, 1);
}

TEST_P(AnyProductTest, NothingIsQueuedForAnEmptyResult) {
  multiply(GetParam().make(0, 512, 1280));
  multiply(GetParam().make(200, 0, 1280));
  EXPECT_TRUE(state().launches.empty());
}

TEST_P(AnyProductTest, ACandidateIsRunByItsName) {
  for (int i = 0; i < 2; ++i) multiply(make(), GetParam().candidate);
  EXPECT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(compilations_, 1);
  EXPECT_THAT(refusal(make(), GetParam().other_candidate, ErrorCode::kInvalidArgument),
              AllOf(HasSubstr(std::string(GetParam().operation) +
                              ": argument 'candidate': expected one of"),
                    HasSubstr(GetParam().candidate),
                    testing::EndsWith(std::string("got ") + GetParam().other_candidate),
                    Not(HasSubstr(std::string(GetParam().other_candidate) + ","))));
}

// Some kinds of products have kernels for such operands: the others are refused.
TEST_P(AnyProductTest, OperandsThatTmaCannotAddress) {
  core::Product product = make();
  product.b.data.data = address(0x30000008);
  const std::string error = refusal(product);
  if (GetParam().make == test::product || config::groups_rows(product.groups.work)) {
    if (!product.gated) {
      EXPECT_EQ(error, "no error");
      EXPECT_TRUE(maps().empty());
      return;
    }
  }
  EXPECT_THAT(error, AllOf(HasSubstr(std::string(GetParam().operation) + ": argument 'b'"),
                           HasSubstr("address")));
  EXPECT_TRUE(state().launches.empty());
  EXPECT_EQ(refusal(make()), "no error");
}

TEST_F(ProductTest, EachFormOfACastIsAKernel) {
  core::Product cast = test::cast_product(5, 1000, 640);
  const auto compiled = [&] {
    multiply(cast);
    return compilations_.load();
  };
  EXPECT_EQ(compiled(), 1);
  cast.a.data.data = address(0x10002);  // element by element
  EXPECT_EQ(compiled(), 2);
  cast.a.data.data = address(0x10000);
  cast.a.data.strides[0] = 641;
  EXPECT_EQ(compiled(), 2);
  cast = test::cast_product(5, 1000, 640);
  cast.a.data.dtype = cast.cast_a->in = DType::kFloat32;
  EXPECT_EQ(compiled(), 3);
  cast.cast_a->power_of_two = true;
  EXPECT_EQ(compiled(), 4);
  core::Product gated = test::gated_product(1000, 512, 640);
  multiply(gated);
  gated.gated->activation = Activation::kGeGluTanh;
  multiply(gated);
  EXPECT_EQ(compilations_, 6);
  gated.gated->format.power_of_two = true;
  multiply(gated);
  EXPECT_EQ(compilations_, 7);
}

TEST_F(ProductTest, WhatNoKernelOfACastTakesIsNamed) {
  EXPECT_THAT(refusal(test::gated_product(1000, 200, 640)),
              AllOf(HasSubstr("argument 'b'"), HasSubstr("N = 200"), HasSubstr("multiple of 128")));
  EXPECT_THAT(refusal(test::gated_product(1000, 256, 648)),
              AllOf(HasSubstr("argument 'a'"), HasSubstr("row stride is not a multiple of 16")));
  EXPECT_THAT(refusal(test::gated_product(1000, 256, 0)),
              AllOf(HasSubstr("argument 'a'"), HasSubstr("no elements")));
  core::Product gated = test::gated_product(1000, 256, 640);
  gated.out.strides[0] = 264;
  EXPECT_THAT(refusal(gated), AllOf(HasSubstr("argument 'out'"), HasSubstr("stride")));
  EXPECT_THAT(refusal(test::grouped_gated_product(1000, 200, 640)),
              AllOf(HasSubstr("gated_gemm: argument 'b'"), HasSubstr("N = 200")));
  EXPECT_THAT(refusal(test::cast_product(5, 256, 648)),
              AllOf(HasSubstr("gemm: argument 'b'"), HasSubstr("row stride"),
                    HasSubstr("gemm() of its codes take it")));
  EXPECT_THAT(refusal(test::cast_product(5, 256, 0)),
              AllOf(HasSubstr("argument 'b'"), HasSubstr("no elements")));
  core::Product depth = test::grouped_product(Work::kGroupedDepth, 200, 512, 1280);
  depth.a.data.data = address(0x10000008);
  EXPECT_THAT(refusal(depth), AllOf(HasSubstr("argument 'a'"), HasSubstr("address")));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(ProductTest, WithoutKThereIsStillAResult) {
  core::Product empty = product(100, 64, 0);
  empty.a.data.data = empty.b.data.data = nullptr;
  multiply(empty);
  EXPECT_EQ(last_params().work.depth, 0);
  EXPECT_TRUE(log_.empty());
}

TEST_F(ProductTest, OperandsThatTmaCannotAddressAreNamedOnce) {
  core::Product address_off = product(1000, 512, 640);
  address_off.b.data.data = address(0x2001);
  const core::Product stride_off = product(1000, 512, 641);
  const core::Product output_off = product(1000, 510, 640);
  for (int i = 0; i < 2; ++i) {
    for (const core::Product& each : {address_off, stride_off, output_off}) multiply(each);
  }
  ASSERT_EQ(log_.size(), 4u);
  EXPECT_THAT(log_[0], HasSubstr("gemm 1000×512×640: argument 'b': its address is not a multiple"));
  EXPECT_THAT(log_[1], HasSubstr("gemm 1000×512×641: argument 'a': its row stride is not"));
  EXPECT_THAT(log_[2], HasSubstr("'b': its row stride is not"));
  EXPECT_THAT(log_[3], HasSubstr("'out': its rows are not"));
}

// TMA strides are positive and at least as long as a row.
TEST_F(ProductTest, RowsThatRepeatOrRunBackwardsAreCopiedByThreads) {
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{-640}}) {
    core::Product dense = product(1000, 512, 640);
    dense.a.data.strides[0] = stride;
    multiply(dense);
    EXPECT_EQ(last_params().rows.stride, stride);
    EXPECT_THAT(log_.back(), HasSubstr("'a': its rows overlap or run backwards"));
  }
  EXPECT_TRUE(maps().empty());
}

TEST_F(ProductTest, TheStrideOfASingleRowDoesNotMatter) {
  core::Product row = product(1, 512, 640);
  row.a.data.strides[0] = 1;
  multiply(row);
  EXPECT_TRUE(log_.empty());
  ASSERT_FALSE(maps().empty());
  EXPECT_EQ(maps().front().row_bytes, 640u);
}

// A GPU that multiplies by warps has no tensor maps, and other rows that are slow.
TEST_F(ProductTest, OfAGpuWithoutWarpgroups) {
  state().compute_major = 8;
  state().compute_minor = 9;
  state().multiprocessors = 128;
  state().shared_memory_per_block = 99 * 1024;
  state().params_bytes = sizeof(config::GemmParams);
  core::Product dense = product(1000, 510, 640);  // a D that no other store would suit better
  multiply(dense);
  EXPECT_THAT(log_, testing::IsEmpty());
  dense.a.data.strides[0] = 644;
  multiply(dense);
  EXPECT_THAT(log_,
              ElementsAre(AllOf(HasSubstr("'a': its row stride is not"), HasSubstr("16 bytes"))));
  dense = product(1000, 512, 640);
  dense.a.data.strides[0] = -656;
  multiply(dense);
  EXPECT_TRUE(maps().empty());
  const auto plan =
      test::plan_as<config::MmaGemmConfig>(plan::problem_of(dense), plan::gpu_of(89, 128));
  EXPECT_EQ(plan.config.load_bytes, 4);  // rows that run backwards
  EXPECT_EQ(last().blocks, plan.kernels.front().blocks);
  EXPECT_EQ(last().threads, static_cast<unsigned>(plan.config.threads()));
  EXPECT_EQ(last().shared_bytes, static_cast<unsigned>(plan.config.shared_bytes()));
  EXPECT_EQ(last().params_as<config::GemmParams>().rows.data, address(test::kA));
  // No kernel of any GPU takes these.
  EXPECT_THAT(refusal(test::gated_product(16, 200, 640)), HasSubstr("a multiple of 128"));
  core::Product in_depth = test::grouped_product(Work::kGroupedDepth, 128, 256, 640);
  in_depth.a.data.strides[0] = 644;
  EXPECT_THAT(refusal(in_depth), HasSubstr("argument 'a': expected a matrix that TMA can"));
}

// ---- Parameters and tensor maps, as far as kernels on the host do not show them, which are run
// with them in tests/cpp/kernels/hopper_gemm_test.cpp.

// Bytes have the type 0, FP32 7, and BF16 9; swizzles of 128 bytes are 3.
TEST_F(ProductTest, TensorMapsHaveTheTypesOfTheMatrices) {
  core::Product dense = product(1000, 512, 640);
  int stream = 0;
  for (const auto& [out, type] : {std::pair{DType::kBFloat16, 9}, {DType::kFloat32, 7}}) {
    dense.out.dtype = out;
    maps().clear();
    multiply(dense, kTile, {&stream});
    EXPECT_EQ(last().stream, &stream);
    EXPECT_EQ(last_params().out, address(test::kOut));
    EXPECT_EQ(last_params().last_rows, 104);  // 7 · 128 + 104
    ASSERT_EQ(maps().size(), 4u);             // of A, B, A's last rows and D
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(maps()[i].data_type, i < 3 ? 0 : type);
      EXPECT_EQ(maps()[i].swizzle, 3);
    }
  }
}

// plan/sm90/cost.h
TEST_F(ProductTest, TilesComeInTheBandsThatSuitThem) {
  multiply(product(1000, 512, 640), kTile);
  EXPECT_FALSE(last_params().work.bands.of_columns);
  multiply(product(1000, 512, 640), "128x192.w2.c2x1x1.b1.early");
  EXPECT_TRUE(last_params().work.bands.of_columns);
}

TEST_F(ProductTest, TmaAddsToAnFP32OutputThatIsC) {
  core::Product dense = product(1000, 512, 640);
  dense.out.dtype = DType::kFloat32;
  const auto adds = [&](const TensorView& c) {
    dense.c = c;
    const auto plan =
        plan::plan_product(plan::problem_of(dense), plan::kHopper, "128x64.w2.c1x1x1.b1.early");
    return std::get<config::Sm90GemmConfig>(plan.config).adds_in_place;
  };
  TensorView other = dense.out;
  EXPECT_TRUE(adds(other));
  other.strides[0] = 1024;
  EXPECT_FALSE(adds(other));
  other = dense.out;
  other.data = address(0x6000);
  EXPECT_FALSE(adds(other));
  dense.out.dtype = DType::kBFloat16;
  EXPECT_FALSE(adds(dense.out));
}

TEST_F(ProductTest, RowsThatArrive) {
  core::Product arriving = product(1000, 512, 640);
  arriving.arrivals = {.flags = test::kNumbers, .shards = 4, .own = 3};
  multiply(arriving);
  EXPECT_THAT(refusal(arriving, kSwapped, ErrorCode::kInvalidArgument),
              HasSubstr("argument 'candidate'"));
  EXPECT_THAT(log_, Not(testing::Contains(HasSubstr("slower"))));
  // Any number of shards is the same kernel, another one than where all rows are there.
  const int compilations = compilations_;
  arriving.arrivals = {.flags = test::kNumbers, .shards = 8};
  multiply(arriving);
  EXPECT_EQ(compilations_, compilations);
  multiply(product(1000, 512, 640));
  EXPECT_EQ(compilations_, compilations + 1);
}

// Kernels for other GPUs do not wait.
TEST_F(ProductTest, RowsThatArriveNeedHopper) {
  state().compute_major = 8;
  state().compute_minor = 9;
  core::Product arriving = product(1000, 512, 640);
  arriving.arrivals = {.flags = test::kNumbers, .shards = 4};
  EXPECT_THAT(refusal(arriving), HasSubstr("gemm: argument 'arrivals': expected a GPU of compute "
                                           "capability 9.0 (H100, H200), whose kernels wait"));
  EXPECT_TRUE(state().launches.empty());
}

// Any tile may be the last of a group: what it has of sub-tiles is loaded by 64 rows, unless a
// block loads 96 of a tile.
TEST_F(ProductTest, LastTilesOfGroupsAreLoadedBySubTiles) {
  for (const Work work : {Work::kGroupedRows, Work::kMaskedRows}) {
    const core::Product grouped = test::grouped_product(work, 1000, 512, 640);
    multiply(grouped, "256x128.w2.c1x2x1.b1.early");
    EXPECT_EQ(last_params().last_rows, 64);
    EXPECT_EQ(last().cluster, 2u);
    EXPECT_EQ(last().threads, 384u);
    multiply(grouped, "192x128.w3.c1x2x1.b1.ordered");
    EXPECT_EQ(last_params().last_rows, 0);
  }
}

// In the boxes that D leaves from, of as many rows, counted twice and from before C on.
TEST_F(ProductTest, CComesByTmaWhereItIsAsked) {
  const std::string candidate = std::string(kTile) + ".onto_c";
  for (const Work work : {Work::kGroupedRows, Work::kGroupedDepth}) {
    core::Product grouped = test::grouped_product(work, 1000, 512, 1280);
    grouped.out.dtype = DType::kFloat32;
    grouped.c = matrix<const void>(address(test::kC), DType::kFloat32, grouped.out.shape[0], 512,
                                   528, test::kGpu);
    multiply(grouped, candidate);
    const fake::TensorMapCall &out = maps()[maps().size() - 2], &c = maps().back();
    EXPECT_EQ(c.address, address(test::kC - 128 * 528 * 4));
    EXPECT_EQ(c.row_bytes, 528u * 4);
    EXPECT_EQ(c.outer_bytes, c.row_bytes);
    EXPECT_EQ(std::tuple(c.rank, c.box_rows, c.box_cols, c.outer),
              std::tuple(out.rank, out.box_rows, out.box_cols, out.outer));
    grouped.c->data = address(test::kC + 4);  // TMA cannot address it
    EXPECT_THAT(refusal(grouped, candidate, ErrorCode::kInvalidArgument),
                AllOf(HasSubstr(kTile), Not(HasSubstr("onto_c,"))));
  }
}

// Plans stay: a call of one of many problems finds its plan as quickly as that of a single one.
TEST_F(ProductTest, ManyProblemsInTurnTakeAboutAsLong) {
  constexpr int kProblems = 200;
  state().params_bytes = 0;
  state().launches.reserve(40'000);
  std::vector<core::Product> problems;
  for (int m = 1; m <= kProblems; ++m) problems.push_back(product(m, 512, 640));
  for (const core::Product& problem : problems) multiply(problem);
  const int compiled = compilations_;
  const auto microseconds = [&](int count) {
    double least = std::numeric_limits<double>::infinity();  // others may use the machine
    for (int repetition = 0; repetition < 20; ++repetition) {
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < kProblems; ++call) {
        multiply(problems[as_size(call % count)]);
      }
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin;
      least = std::min(least, time.count() / kProblems);
    }
    return least;
  };
  const double of_one = microseconds(1), of_many = microseconds(kProblems);
  std::printf("one problem %.2f µs, %d in turn %.2f µs\n", of_one, kProblems, of_many);
  EXPECT_EQ(compilations_, compiled);
  EXPECT_LT(of_many, 4 * of_one);
}

}  // namespace
}  // namespace octofold::cuda
