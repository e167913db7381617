#include <fmt/format.h>

#include "octofold/checkpoint.h"

#include "checkpoints.h"
#include "model/safetensors.h"
#include "support/test.h"

namespace octofold::model {
namespace {

using nlohmann::json;
using test::expect_copied;
using test::expect_error;
using test::float_tensor;
using test::NamedTensor;
using test::Names;
using test::read_checkpoint;
namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";

/// A checkpoint of two shards in the folder "in" of a folder of its own.
class ShardedCheckpoint : public testing::Test {
 protected:
  ShardedCheckpoint() {
    fs::create_directory(in());
    test::write_checkpoint(in() / "a.safetensors", {weight_, bias_}, {{"format", "pt"}});
    test::write_checkpoint(in() / "b.safetensors", {other_, head_});
    write_index({{"metadata", {{"total_size", 1}, {"kept", "yes"}}}, {"weight_map", map_}});
  }

  fs::path in() const { return folder_ / "in"; }
  fs::path out() const { return folder_ / "out"; }

  void write_index(const json& index) { test::write_file(in() / kIndex, index.dump()); }
  void write_map(const json& map) { write_index({{"weight_map", map}}); }

  CheckpointReport convert(const QuantizeCheckpointOptions& options = {}) {
    return quantize_checkpoint(in() / kIndex, out() / kIndex, options);
  }

  /// Expects convert() to fail so, and nothing beside the input afterwards.
  void expect_failure(ErrorCode code, const std::vector<std::string>& parts) {
    expect_error(code, parts, [&] { convert(); });
    EXPECT_EQ(folder_.names(), Names{"in"});
  }
  void expect_bad(const std::vector<std::string>& parts) {
    expect_failure(ErrorCode::kBadFormat, parts);
  }

  const test::TestFolder folder_;
  const NamedTensor weight_ = float_tensor("x.weight", {200, 150}, 1);
  const NamedTensor bias_ = float_tensor("x.bias", {200}, 2);
  const NamedTensor other_ = float_tensor("y.weight", {64, 64}, 3);
  const NamedTensor head_ = float_tensor("lm_head.weight", {10, 10}, 4);
  json map_ = {{"x.weight", "a.safetensors"},
               {"x.bias", "a.safetensors"},
               {"y.weight", "b.safetensors"},
               {"lm_head.weight", "b.safetensors"}};
};

TEST_F(ShardedCheckpoint, IsRewrittenShardByShard) {
  test::write_file(in() / "config.json", R"({"model_type":"x","eps":1e-06,"n":[1]})");
  std::int64_t last = 0;
  const auto report = convert({.progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 4 * (200 * 150 + 200 + 64 * 64 + 100));
    last = done;
  }});

  const auto a = read_checkpoint(out() / "a.safetensors");
  const auto b = read_checkpoint(out() / "b.safetensors");
  EXPECT_EQ(a.at("x.weight").dtype, SafetensorsDType::kF8E4M3);
  EXPECT_EQ(a.at("x.weight_scale_inv").shape, (std::vector<std::int64_t>{2, 2}));
  expect_copied(a, bias_);
  EXPECT_EQ(b.at("y.weight").dtype, SafetensorsDType::kF8E4M3);
  expect_copied(b, head_);
  EXPECT_EQ(SafetensorsReader(out() / "a.safetensors").metadata().at("format"), "pt");

  json map = map_;
  map["x.weight_scale_inv"] = "a.safetensors";
  map["y.weight_scale_inv"] = "b.safetensors";
  const std::int64_t total = 200 * 150 + 4 * 4 + 4 * 200 + 64 * 64 + 4 + 400;
  EXPECT_EQ(json::parse(test::read_file(out() / kIndex)),
            json({{"metadata", {{"total_size", total}, {"kept", "yes"}}}, {"weight_map", map}}));
  EXPECT_EQ(report.output_bytes, total);
  EXPECT_EQ(json::parse(test::read_file(out() / "config.json")),
            json({{"model_type", "x"},
                  {"eps", 1e-06},
                  {"n", {1}},
                  {"quantization_config",
                   {{"activation_scheme", "dynamic"},
                    {"fmt", "e4m3"},
                    {"modules_to_not_convert", {"lm_head"}},
                    {"quant_method", "fp8"},
                    {"weight_block_size", {128, 128}}}}}));
  EXPECT_EQ(report.files, (std::vector<fs::path>{out() / "a.safetensors", out() / "b.safetensors",
                                                 out() / "config.json", out() / kIndex}));
  EXPECT_EQ(folder_.names(), (Names{"in", "out"}));
  EXPECT_EQ(std::distance(fs::directory_iterator(out()), {}), 4);
}

TEST_F(ShardedCheckpoint, GoesIntoAnEmptyFolderOnly) {
  fs::create_directory(out());
  convert();
  EXPECT_TRUE(fs::exists(out() / kIndex));
  EXPECT_FALSE(fs::exists(out() / "config.json"));
  expect_error(ErrorCode::kInvalidArgument, {"'output'", "which exists"}, [&] { convert(); });
  expect_error(ErrorCode::kInvalidArgument, {"'output'", "does not exist yet or is empty"},
               [&] { quantize_checkpoint(in() / kIndex, out() / "other.safetensors.index.json"); });
  expect_error(ErrorCode::kInvalidArgument, {"'output'", "other than the input"},
               [&] { quantize_checkpoint(in() / kIndex, in() / kIndex); });
  expect_error(ErrorCode::kInvalidArgument, {"'output'", "does not exist yet or is empty"},
               [&] { quantize_checkpoint(in() / kIndex, out() / kIndex / kIndex); });
  expect_error(ErrorCode::kIo, {"none/deep", "No such file"},
               [&] { quantize_checkpoint(in() / kIndex, folder_.path() / "none/deep" / kIndex); });
  EXPECT_EQ(folder_.names(), (Names{"in", "out"}));
}

TEST_F(ShardedCheckpoint, CurrentFolderIsNotReplaced) {
  fs::create_directory(out());
  const fs::path before = fs::current_path();
  fs::current_path(out());
  expect_error(ErrorCode::kInvalidArgument, {"'output'", "current"},
               [&] { quantize_checkpoint(in() / kIndex, kIndex); });
  fs::current_path(before);
}

TEST_F(ShardedCheckpoint, FailuresLeaveNothingBehind) {
  for (const std::int64_t stop : {0, 120'800, 137'584}) {
    const auto progress = [&](std::int64_t done, std::int64_t) {
      if (done >= stop) throw std::runtime_error("stop");
    };
    EXPECT_THROW(convert({.progress = progress}), std::runtime_error);
    EXPECT_EQ(folder_.names(), Names{"in"});
  }
}

TEST_F(ShardedCheckpoint, FolderThatFillsMeanwhileIsNotReplaced) {
  const auto progress = [&](std::int64_t done, std::int64_t total) {
    if (done != total) return;
    fs::create_directory(out());
    test::write_file(out() / "precious", "data");
  };
  expect_error(ErrorCode::kIo, {out().string(), "not empty"},
               [&] { convert({.progress = progress}); });
  EXPECT_EQ(folder_.names(), (Names{"in", "out"}));
  EXPECT_EQ(test::read_file(out() / "precious"), "data");
}

TEST_F(ShardedCheckpoint, BadIndexIsRefused) {
  const auto expect = [&](std::string_view text, std::vector<std::string> parts) {
    SCOPED_TRACE(text.substr(0, 100));
    test::write_file(in() / kIndex, text);
    parts.push_back((in() / kIndex).string());
    expect_bad(parts);
  };
  expect("", {"begins with '{'"});
  expect("[]", {"begins with '{'"});
  expect("version https://git-lfs.github.com/spec/v1\n", {"a pointer of Git LFS"});
  expect("{", {"not valid JSON at byte"});
  expect("{\"weight_map\":{}}\n\xFF", {"expected UTF-8"});
  expect("{}", {"weight_map: expected an object", "without it"});
  expect(R"({"weight_map":[]})", {"weight_map: expected an object", "got array"});
  expect(R"({"weight_map":{},"metadata":3})", {"metadata: expected an object", "got number"});
  expect(R"({"weight_map":{"x":3}})", {"'x'", "got number"});
  expect(R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})", {"'x' occurs twice"});
  expect(R"({"weight_map":{},"weight_map":{}})", {"'weight_map' occurs twice"});
  expect(R"({"n":1e999})", {"out of the range of a double"});
  expect(fmt::format(R"({{"deep":{}{}}})", std::string(100000, '['), std::string(100000, ']')),
         {"deeper than 100"});
}

TEST_F(ShardedCheckpoint, ShardsLieBesideTheIndex) {
  for (const char* shard : {"", "../b.safetensors", "/etc/passwd", "sub/b.safetensors", "..",
                            "b.bin", "/b.safetensors"}) {
    map_["y.weight"] = shard;
    write_map(map_);
    expect_bad({"'y.weight'", "beside the index", fmt::format("'{}'", shard)});
  }
}

TEST_F(ShardedCheckpoint, IndexAndShardsMustAgree) {
  json wrong = map_;
  wrong["y.weight"] = "a.safetensors";
  write_map(wrong);
  expect_bad({"expected tensor 'y.weight' in 'a.safetensors'", "a file without it"});

  wrong = map_;
  wrong.erase("x.bias");
  write_map(wrong);
  expect_bad({"'x.bias'", "'a.safetensors', where it is"});

  wrong = map_;
  wrong["z"] = "c.safetensors";
  write_map(wrong);
  expect_failure(ErrorCode::kIo, {"c.safetensors", "No such file"});

  write_map(map_);
  fs::resize_file(in() / "b.safetensors", fs::file_size(in() / "b.safetensors") - 1);
  expect_bad({"b.safetensors", "truncated"});
}

TEST(ShardedCheckpoints, SeventyBillionParametersAreHeadersOnly) {
  const test::TestFolder folder;
  json map = json::object();
  for (int shard = 0; shard < 20; ++shard) {
    json header = json::object();
    std::int64_t end = 0;
    for (int layer = 4 * shard; layer < 4 * shard + 4; ++layer) {
      for (const char* part : {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
        const std::string name = fmt::format("model.layers.{}.{}.weight", layer, part);
        const std::int64_t bytes = std::int64_t{2} * 8192 * 21299;
        header[name] = {
            {"dtype", "BF16"}, {"shape", {8192, 21299}}, {"data_offsets", {end, end + bytes}}};
        end += bytes;
        map[name] = fmt::format("{}.safetensors", shard);
      }
    }
    const std::string text = header.dump();
    const auto path = folder / fmt::format("{}.safetensors", shard);
    test::write_file(path, test::safetensors_bytes(text, ""));
    fs::resize_file(path, 8 + text.size() + as_size(end));
  }
  test::write_file(folder / "m.safetensors.index.json", json{{"weight_map", map}}.dump());
  const CheckpointContents contents = inspect_checkpoint(folder.path());
  EXPECT_EQ(contents.others.size(), 400u);
  EXPECT_GT(contents.bytes, std::int64_t{139'000'000'000});
}

}  // namespace
}  // namespace octofold::model
