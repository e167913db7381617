#include <filesystem>
#include <fmt/format.h>
#include <sys/file.h>

#include "octofold/checkpoint.h"

#include "checkpoints.h"
#include "support/test.h"

namespace octofold {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::float_tensor;
using test::Names;
using test::TestFolder;
using test::write_checkpoint;
using QuantizeCheckpoint = test::FolderTest;

TEST_F(QuantizeCheckpoint, SkipPatternsAreGlobs) {
  write_checkpoint(
      folder_.in(),
      {float_tensor("a.0.weight", {2, 2}, 1), float_tensor("a.1.weight", {2, 2}, 2),
       float_tensor("b.0.weight", {2, 2}, 3), float_tensor("lm_head.weight", {2, 2}, 4)});
  int run = 0;
  const auto quantized = [&](QuantizeCheckpointOptions options) {
    const auto report =
        quantize_checkpoint(folder_.in(), folder_ / fmt::format("{}.safetensors", run++), options);
    return report.quantized;
  };
  EXPECT_EQ(quantized({}), (Names{"a.0.weight", "a.1.weight", "b.0.weight"}));
  EXPECT_EQ(quantized({.skip = {"a.*"}}), (Names{"b.0.weight"}));
  EXPECT_EQ(quantized({.skip = {"?.[1-9].*", "b.0.weight"}}), (Names{"a.0.weight"}));
  EXPECT_EQ(quantized({.skip = {"a.0"}}), (Names{"a.0.weight", "a.1.weight", "b.0.weight"}));
  EXPECT_EQ(quantized({.skip = {"[ab]*"}, .use_default_skips = false}), (Names{"lm_head.weight"}));
  expect_error(ErrorCode::kInvalidArgument, {"'skip'"}, [&] { quantized({.skip = {""}}); });
}

TEST_F(QuantizeCheckpoint, DefaultSkipsAreWhatDeepSeekLeavesAlone) {
  const auto becomes_fp8 = [&](const std::string& name) {
    write_checkpoint(folder_.in(),
                     {float_tensor(name, {2, 2}, 1), float_tensor("another.weight", {2, 2}, 2)});
    const auto report = quantize_checkpoint(folder_.in(), folder_.out());
    fs::remove(folder_.in());
    fs::remove(folder_.out());
    return report.quantized.size() == 2;
  };
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.3.mlp.gate.weight", "lm_head.weight",
        "model.layers.61.eh_proj.weight", "model.layers.61.shared_head.head.weight",
        "transformer.wte.weight", "transformer.wpe.weight", "mlp.shared_expert_gate.weight",
        "embeddings.word_embeddings.weight", "classifier.weight", "score.weight", "shared.weight",
        "model.shared.weight", "text_encoders.t5xxl.transformer.shared.weight",
        "backbone.layers.0.mixer.dt_proj.weight",
        "encoder.block.0.layer.1.DenseReluDense.wo.weight"}) {
    EXPECT_FALSE(becomes_fp8(name)) << name;
  }
  for (const char* name :
       {"model.layers.3.mlp.gate_proj.weight", "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.3.mlp.experts.7.down_proj.weight", "encoder.layer.0.output.dense.weight",
        "encoder.layer.0.attention.self.query.weight", "layers.0.attention.wo.weight",
        "model.layers.0.mlp.shared.up.weight"}) {
    EXPECT_TRUE(becomes_fp8(name)) << name;
  }
}

TEST_F(QuantizeCheckpoint, OtherQuantizationsAreRefused) {
  for (const char* name : {"a.weight_scale", "a.weight_scale_inv", "a.qweight"}) {
    const fs::path input = folder_ / (std::string(name) + ".safetensors");
    write_checkpoint(input, {float_tensor("b.weight", {9, 9}, 1), float_tensor(name, {9, 1}, 2)});
    test::expect_error(ErrorCode::kUnsupported, {name, "quantized in another way"},
                       [&] { quantize_checkpoint(input, folder_.out()); });
    EXPECT_EQ(folder_.names(), Names{input.filename()});
    fs::remove(input);
  }
}

// By a process of an id that lives, as that of a container's first process always does.
TEST_F(QuantizeCheckpoint, WhatWasLeftIsRemovedWhoeverHasTheId) {
  write_checkpoint(folder_.in(), {float_tensor("a.weight", {9, 9}, 1)});
  const fs::path old = folder_ / ".octofold-1-0.partial", young = folder_ / ".octofold-1-1.partial",
                 locked = folder_ / ".octofold-1-2.partial",
                 foreign = folder_ / ".octofold-my-notes.partial";
  fs::create_directory(old);
  for (const fs::path& path : {old / "model.safetensors", young, locked, foreign}) {
    test::write_file(path, "half");
  }
  const auto a_minute_ago = fs::file_time_type::clock::now() - std::chrono::minutes(1);
  for (const fs::path& path : {old, locked, foreign}) fs::last_write_time(path, a_minute_ago);
  const core::File held = core::File::open_for_reading(locked);
  ASSERT_EQ(flock(held.descriptor(), LOCK_EX | LOCK_NB), 0);
  const test::Log log;
  quantize_checkpoint(folder_.in(), folder_.out());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_TRUE(fs::exists(locked) && fs::exists(foreign));
  test::expect_contains(log.text(),
                        "-1-0.partial', which was left behind by a run that was killed");
}

TEST_F(QuantizeCheckpoint, AConfigThatLeadsNowhereIsLeft) {
  const TestFolder inputs, outputs;
  write_checkpoint(inputs / "in.safetensors", {float_tensor("a.weight", {9, 9}, 1)});
  test::write_file(inputs / "config.json", "{}");
  fs::create_symlink("nowhere", outputs / "config.json");
  const test::Log quiet;
  const auto report = quantize_checkpoint(inputs / "in.safetensors", outputs / "out.safetensors");
  EXPECT_EQ(report.files, std::vector<fs::path>{outputs / "out.safetensors"});
  EXPECT_TRUE(fs::is_symlink(outputs / "config.json"));
}

TEST_F(QuantizeCheckpoint, RefusesPathsThatDoNotFit) {
  write_checkpoint(folder_.in(), {float_tensor("a.weight", {2, 2}, 1)});
  const std::string before = test::read_file(folder_.in());
  test::write_file(folder_ / "in.bin", "pickled");
  test::write_file(folder_ / "in.safetensors.index.json", "{}");
  test::write_file(folder_ / "old.safetensors", "precious");
  fs::create_symlink("nowhere", folder_ / "dangling.safetensors");
  fs::create_symlink("in.safetensors", folder_ / "link.safetensors");
  const auto expect = [&](std::string_view input, std::string_view output, ErrorCode code,
                          const std::vector<std::string>& parts) {
    expect_error(code, parts, [&] { quantize_checkpoint(folder_ / input, folder_ / output); });
  };
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  expect("in.bin", "out.safetensors", kInvalid,
         {"'input'", ".safetensors", "in.bin", "torch.save()", "save_pretrained"});
  expect(".", "out.safetensors", kInvalid, {"'output'", "a folder, as the input is"});
  expect("in.safetensors", "out.bin", kInvalid, {"'output'", ".safetensors", "out.bin"});
  expect("in.safetensors", "out.safetensors.index.json", kInvalid, {"'output'", "as the input"});
  expect("in.safetensors.index.json", "out.safetensors", kInvalid, {"'output'", "as the input"});
  using std::string_view_literals::operator""sv;
  expect("in.safetensors\0x"sv, "out.safetensors", kInvalid, {"'input'", "in.safetensors", "NUL"});
  expect("in.safetensors", "out.safetensors\0x.safetensors"sv, kInvalid, {"'output'", "NUL"});
  expect("none.bin", "out.safetensors", ErrorCode::kIo, {"none.bin", "No such"});
  expect("in.safetensors", "in.safetensors", kInvalid, {"'output'", "other than the input"});
  expect("in.safetensors", "link.safetensors", kInvalid, {"'output'", "other than the input"});
  expect("in.safetensors", "old.safetensors", kInvalid, {"'output'", "which exists"});
  expect("in.safetensors", "dangling.safetensors", kInvalid, {"'output'", "which exists"});
  expect("none.safetensors", "out.safetensors", ErrorCode::kIo, {"none.safetensors", "No such"});
  expect("in.safetensors", "none/out.safetensors", ErrorCode::kIo, {"none/out", "No such"});
  expect("old.safetensors", "out.safetensors", ErrorCode::kBadFormat, {"old.safetensors"});
  EXPECT_EQ(test::read_file(folder_.in()), before);
  EXPECT_EQ(test::read_file(folder_ / "old.safetensors"), "precious");
  EXPECT_EQ(folder_.names().size(), 6u);
}

TEST_F(QuantizeCheckpoint, AnInputThatShrinksWhileItIsReadLeavesNothingBehind) {
  write_checkpoint(folder_.in(), {float_tensor("a.weight", {600, 600}, 1)});
  const auto shrink = [&](std::int64_t done, std::int64_t) {
    if (done == 0) fs::resize_file(folder_.in(), 1000);
  };
  expect_error(ErrorCode::kIo, {"in.safetensors", "as when it was opened"},
               [&] { quantize_checkpoint(folder_.in(), folder_.out(), {.progress = shrink}); });
  EXPECT_EQ(folder_.names(), Names{"in.safetensors"});
}

/// Peak memory of this process so far, in bytes.
std::int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

TEST_F(QuantizeCheckpoint, MemoryDoesNotGrowWithTheFile) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory drowns what is measured";
#endif
  // Data that is all holes: large for the reader, nothing for the disk.
  const auto peak_after = [&](std::int64_t megabytes) {
    const std::int64_t rows = megabytes * 256;
    const std::string header =
        fmt::format(R"({{"a.weight":{{"dtype":"BF16","shape":[{0},1024],"data_offsets":[0,{1}]}},)"
                    R"("b":{{"dtype":"BF16","shape":[{0},1024],"data_offsets":[{1},{2}]}}}})",
                    rows, rows * 2048, rows * 4096);
    const auto input = folder_ / fmt::format("{}.safetensors", megabytes);
    test::write_file(input, test::safetensors_bytes(header, ""));
    fs::resize_file(input, 8 + header.size() + as_size(rows) * 4096);
    quantize_checkpoint(input, folder_ / fmt::format("{}-out.safetensors", megabytes));
    return peak_memory();
  };
  const std::int64_t small = peak_after(128);
  EXPECT_LT(peak_after(512) - small, 16 << 20);
}

}  // namespace
}  // namespace octofold
#include "core/file.h"
