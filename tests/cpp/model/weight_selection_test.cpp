// Weights that quantize_checkpoint() leaves alone or refuses, since the libraries that load a
// family would read them otherwise, and what it says of them.
#include <nlohmann/json.hpp>
#include <regex>

#include "octofold/checkpoint.h"

#include "checkpoints.h"
#include "support/test.h"

namespace octofold {
namespace {

namespace fs = std::filesystem;
using model::SafetensorsDType;
using nlohmann::json;
using test::expect_copied;
using test::expect_error;
using test::float_tensor;
using test::NamedTensor;
using test::Names;
using test::read_checkpoint;
using test::TestFolder;
using test::write_checkpoint;
using WeightSelection = test::FolderTest;
using FolderFiles = test::FolderTest;

std::map<std::string, std::string> reasons_of(const CheckpointReport& report) {
  std::map<std::string, std::string> reasons;
  for (const LeftAlone& weight : report.left_alone) reasons[weight.name] = weight.reason;
  return reasons;
}

/// The outcome for some tensors: what becomes of them, and what was logged.
struct Outcome {
  CheckpointReport report;
  std::map<std::string, std::string> reasons;
  std::map<std::string, NamedTensor> tensors;
  std::string log;
};

Outcome quantize(const std::vector<NamedTensor>& tensors,
                 const QuantizeCheckpointOptions& options) {
  const TestFolder folder;
  write_checkpoint(folder.in(), tensors);
  Outcome outcome;
  const test::Log log;
  outcome.report = quantize_checkpoint(folder.in(), folder.out(), options);
  outcome.log = log.text();
  outcome.reasons = reasons_of(outcome.report);
  outcome.tensors = read_checkpoint(folder.out());
  return outcome;
}

TEST_F(WeightSelection, MatricesStoredAsInOutAreLeftAlone) {
  const std::vector<NamedTensor> conv1d = {float_tensor("h.0.attn.c_attn.weight", {8, 24}, 1),
                                           float_tensor("h.0.attn.c_attn.bias", {24}, 2),
                                           float_tensor("h.0.attn.c_proj.weight", {8, 8}, 3),
                                           float_tensor("h.0.attn.c_proj.bias", {8}, 4),
                                           float_tensor("h.0.mlp.c_proj.weight", {32, 8}, 5),
                                           float_tensor("h.0.mlp.c_proj.bias", {8}, 6),
                                           float_tensor("h.0.attn.q_attn.weight", {8, 8}, 7),
                                           float_tensor("h.0.attn.q_attn.bias", {8}, 8)};
  std::vector<NamedTensor> all = conv1d;
  all.push_back(float_tensor("other.up.weight", {24, 8}, 9));
  all.push_back(float_tensor("other.up.bias", {24}, 10));
  all.push_back(float_tensor("other.square.weight", {8, 8}, 11));
  all.push_back(float_tensor("other.square.bias", {8}, 12));
  for (const CheckpointFamily family : checkpoint_families()) {
    if (family == CheckpointFamily::kModelOpt) continue;
    SCOPED_TRACE(name(family));
    const Outcome outcome = quantize(all, {.family = family, .granularity = std::nullopt});
    EXPECT_EQ(outcome.report.quantized, (Names{"other.square.weight", "other.up.weight"}));
    for (const NamedTensor& tensor : conv1d) {
      expect_copied(outcome.tensors, tensor);
      if (!tensor.name.ends_with(".weight")) continue;
      test::expect_contains(outcome.reasons.at(tensor.name), "[in, out] (transformers' Conv1D)");
    }
    test::expect_contains(outcome.log, "4 weights are left as they are, because it is stored as");
  }
  expect_error(ErrorCode::kInvalidArgument, {"'input'", "c_attn.weight", "Conv1D"},
               [&] { quantize(conv1d, {}); });
}

TEST_F(WeightSelection, StacksThatExpertsInFp8AreNotAreLeftAlone) {
  const NamedTensor fine = float_tensor("a.experts.gate_up_proj", {2, 512, 128}, 1);
  const NamedTensor fine_down = float_tensor("a.experts.down_proj", {2, 128, 256}, 2);
  const NamedTensor turned = float_tensor("b.experts.gate_up_proj", {2, 128, 512}, 3);
  const NamedTensor turned_down = float_tensor("b.experts.down_proj", {2, 256, 128}, 4);
  const NamedTensor biased = float_tensor("c.experts.down_proj", {2, 128, 128}, 5);
  const Outcome outcome = quantize({fine, fine_down, turned, turned_down, biased,
                                    float_tensor("c.experts.down_proj_bias", {2, 128}, 6)},
                                   {.family = CheckpointFamily::kFineGrainedFp8});
  EXPECT_EQ(outcome.report.quantized, (Names{fine_down.name, fine.name}));
  test::expect_contains(outcome.reasons.at(turned.name), "[experts, in, out]");
  test::expect_contains(outcome.reasons.at(turned_down.name), "[experts, in, out]");
  test::expect_contains(outcome.reasons.at(biased.name), "biases");
  expect_copied(outcome.tensors, biased);
}

TEST_F(WeightSelection, ConversionsChooseScalesThatAreReadOrRefuse) {
  write_checkpoint(folder_.in(), {float_tensor("l.wide.weight", {128, 200}, 1),
                                  float_tensor("l.whole.weight", {128, 256}, 2)});
  const test::Log quiet;
  quantize_checkpoint(folder_.in(), folder_ / "fp8.safetensors");
  using enum CheckpointFamily;
  for (const CheckpointFamily family : {kCompressedTensors, kTorchao}) {
    SCOPED_TRACE(name(family));
    const fs::path output = folder_ / (std::string(name(family)) + ".safetensors");
    const auto report = convert_checkpoint(folder_ / "fp8.safetensors", output, {.family = family});
    EXPECT_EQ(report.requantized, Names{"l.wide.weight"});
    expect_error(ErrorCode::kInvalidArgument, {"'granularity'", "l.wide.weight", "128x200"}, [&] {
      convert_checkpoint(folder_ / "fp8.safetensors", folder_ / "no.safetensors",
                         {.family = family, .granularity = Granularity::kBlock128x128});
    });
  }
  const test::Log log;
  convert_checkpoint(folder_ / "fp8.safetensors", folder_ / "fine.safetensors",
                     {.family = kFineGrainedFp8});
  test::expect_contains(log.text(),
                        "1 weights have sizes that are no multiples of 128: transformers");
}

/// True if compressed-tensors leaves a module alone that is not in the file.
bool is_ignored(const json& config, const std::string& module) {
  for (const std::string entry : config.at("quantization_config").at("ignore")) {
    if (entry == module) return true;
    // Python's re.match, whose whole text these match.
    if (entry.starts_with("re:") && std::regex_match(module, std::regex(entry.substr(3)))) {
      return true;
    }
  }
  return false;
}

TEST_F(WeightSelection, HeadsThatAreNotInTheFileAreIgnored) {
  fs::create_directory(folder_ / "in");
  write_checkpoint(folder_ / "in" / "model.safetensors",
                   {float_tensor("bert.encoder.layer.0.dense.weight", {8, 8}, 1),
                    float_tensor("bert.pooler.dense.weight", {8, 8}, 2),
                    float_tensor("visual.0.qkv.weight", {8, 8}, 4),
                    float_tensor("visual.0.odd.weight", {8, 8}, 5),
                    float_tensor("vocab_transform.weight", {8, 8}, 3)});
  test::write_file(folder_ / "in" / "config.json", "{}");
  const LoadedModel loaded = {.modules = {{"visual.0.qkv", "tower.0.to_qkv"}, {"l.1.x", "l.1.x"}},
                              .unreadable = {{"visual.0.odd.weight", "a reason"}}};
  const auto report = quantize_checkpoint(folder_ / "in", folder_ / "out",
                                          {.skip = {"visual.0.qkv.weight"},
                                           .family = CheckpointFamily::kCompressedTensors,
                                           .loaded = loaded});
  EXPECT_EQ(reasons_of(report)["visual.0.odd.weight"], "a reason");
  const json config = json::parse(test::read_file(folder_ / "out" / "config.json"));
  for (const char* module :
       {"tower.0.to_qkv", "visual.0.qkv", "model.visual.0.odd", "l.1.x", "cls.predictions.decoder",
        "lm_head.decoder", "vocab_projector", "decoder", "generator_lm_head", "proj_out",
        "model.proj_out", "score", "classifier.dense"}) {
    EXPECT_TRUE(is_ignored(config, module)) << module;
  }
  for (const char* module :
       {"bert.encoder.layer.0.dense", "encoder.layer.0.dense", "layers.0.renamed", "0.dense",
        "bert.pooler.dense", "pooler.dense", "model.bert.pooler.dense", "vocab_transform",
        "distilbert.vocab_transform"}) {
    EXPECT_FALSE(is_ignored(config, module)) << module;
  }
}

TEST_F(WeightSelection, TorchaoSaysTheTypeOfWhatIsNotFp8) {
  NamedTensor half = float_tensor("l.half.weight", {8, 8}, 1);
  half.dtype = SafetensorsDType::kF16;
  half.bytes.resize(8 * 8 * 2);
  write_checkpoint(folder_.in(), {half, float_tensor("l.norm.weight", {8}, 3)});
  const auto dtype_of = [](const fs::path& path, const char* name) {
    const json entry = json::parse(model::SafetensorsReader(path).metadata().at(name));
    return entry.at("_data").at("dtype").at("_data").get<std::string>();
  };
  quantize_checkpoint(folder_.in(), folder_ / "ct.safetensors",
                      {.family = CheckpointFamily::kCompressedTensors});
  convert_checkpoint(folder_ / "ct.safetensors", folder_ / "ao.safetensors",
                     {.family = CheckpointFamily::kTorchao});
  EXPECT_EQ(dtype_of(folder_ / "ao.safetensors", "l.half.weight"), "float32");
}

TEST_F(WeightSelection, TorchaoIsToldOfNamesWithoutADotByDiffusersAlone) {
  fs::create_directory(folder_ / "in");
  write_checkpoint(
      folder_ / "in" / "model.safetensors",
      {float_tensor("l.weight", {8, 8}, 1), float_tensor("final_logits_bias", {8}, 2)});
  const auto told = [&](const char* config, const char* output) {
    test::write_file(folder_ / "in" / "config.json", config);
    quantize_checkpoint(folder_ / "in", folder_ / output, {.family = CheckpointFamily::kTorchao});
    const model::SafetensorsReader reader(folder_ / output / "model.safetensors");
    return json::parse(reader.metadata().at("tensor_names")).get<Names>();
  };
  EXPECT_EQ(told(R"({"architectures":["X"]})", "a"), Names{"l.weight"});
  EXPECT_EQ(told(R"({"_diffusers_version":"1"})", "b"), (Names{"final_logits_bias", "l.weight"}));
}

TEST_F(FolderFiles, FoldersBelowComeAlongAndOtherFormatsAreNamed) {
  const fs::path in = folder_ / "in";
  write_checkpoint((fs::create_directories(in), in / "model.safetensors"),
                   {float_tensor("a.weight", {8, 8}, 1)});
  test::write_file(in / "config.json", "{}");
  test::write_file(in / "modules.json", R"([{"path":""},{"path":"1_Pooling"},{"path":"2_Dense"}])");
  for (const char* path :
       {"1_Pooling/config.json", "2_Dense/pytorch_model.bin", "onnx/model.onnx", "onnx/config.json",
        ".git/HEAD", ".cache/x", ".gitattributes", "pytorch_model.bin", "a/b/c.txt",
        "adapter_config.json", "adapter_model.safetensors"}) {
    fs::create_directories((in / path).parent_path());
    test::write_file(in / path, path);
  }
  const test::Log log;
  const CheckpointReport report = quantize_checkpoint(in, in / "out");
  Names files;
  for (const fs::path& path : report.files) files.push_back(path.lexically_relative(in / "out"));
  std::sort(files.begin(), files.end());
  EXPECT_EQ(files, (Names{".gitattributes", "1_Pooling/config.json", "2_Dense/pytorch_model.bin",
                          "a/b/c.txt", "adapter_config.json", "adapter_model.safetensors",
                          "config.json", "model.safetensors", "modules.json", "onnx/config.json"}));
  for (const fs::path& path : report.files) EXPECT_TRUE(fs::is_regular_file(path)) << path;
  EXPECT_EQ(test::read_file(in / "out/a/b/c.txt"), "a/b/c.txt");
  test::expect_contains(log.text(),
                        "2 other files of weights are left behind: "
                        "'onnx/model.onnx', 'pytorch_model.bin'");
}

TEST_F(FolderFiles, FamiliesThatAFolderIsNotOfAreRefused) {
  fs::create_directory(folder_ / "in");
  write_checkpoint(folder_ / "in" / "model.safetensors", {float_tensor("a.weight", {8, 8}, 1)});
  const auto expect = [&](const char* config, CheckpointFamily family, const Names& parts) {
    test::write_file(folder_ / "in" / "config.json", config);
    expect_error(ErrorCode::kInvalidArgument, parts,
                 [&] { quantize_checkpoint(folder_ / "in", folder_ / "out", {.family = family}); });
  };
  expect(R"({"_diffusers_version":"0.42"})", CheckpointFamily::kDeepSeekV3,
         {"'family'", "torchao", "Diffusers", "deepseek-v3"});
  expect(R"({"architectures":["X"]})", CheckpointFamily::kComfyUi,
         {"'family'", "transformers", "comfyui"});
}

}  // namespace
}  // namespace octofold
