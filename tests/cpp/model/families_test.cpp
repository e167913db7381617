#include <fmt/format.h>

#include "octofold/checkpoint.h"

#include "checkpoints.h"
#include "model/contents.h"
#include "model/families/family.h"
#include "support/test.h"

namespace octofold {
namespace {

using model::SafetensorsDType;
using nlohmann::json;
using test::expect_error;
using test::float_tensor;
using test::NamedTensor;
using test::Names;
using test::read_checkpoint;
using test::write_checkpoint;
using Families = test::FolderTest;

TEST_F(Families, NamesAreSpelledAndRead) {
  using model::spelled;
  using model::weight_spelled;
  EXPECT_EQ(spelled("*_scale_inv", "a.b.weight"), "a.b.weight_scale_inv");
  EXPECT_EQ(spelled("?input_scale", "a.b.weight"), "a.b.input_scale");
  EXPECT_EQ(spelled("?input_scale", "a.down_proj"), "a.down_proj_input_scale");
  EXPECT_EQ(spelled("_*_qdata", "weight"), "_weight_qdata");
  EXPECT_EQ(weight_spelled("_*_qdata", "a._weight_qdata"), "a.weight");
  EXPECT_EQ(weight_spelled("*", "a.weight"), "a.weight");
  EXPECT_EQ(weight_spelled("_*_qdata", "a.weight_qdata"), std::nullopt);
  EXPECT_EQ(weight_spelled("_*_qdata", "a.__qdata"), std::nullopt);
  for (const CheckpointFamily family : checkpoint_families()) {
    EXPECT_EQ(parse_checkpoint_family(name(family)), family);
  }
  expect_error(ErrorCode::kInvalidArgument, {"deepseek-v3, finegrained-fp8", "got 'awq'"},
               [] { parse_checkpoint_family("awq"); });
}

TEST_F(Families, ScalesTellTheirGranularity) {
  const std::vector<std::int64_t> codes = {300, 260};
  const auto expect = [&](const model::Family& family, std::vector<std::int64_t> scale,
                          std::optional<Granularity> granularity) {
    EXPECT_EQ(granularity_of(family, codes, scale), granularity) << json(scale).dump();
  };
  expect(model::kCompressedTensors, {1}, Granularity::kTensor);
  expect(model::kCompressedTensors, {300, 1}, Granularity::kChannel);
  expect(model::kCompressedTensors, {3, 3}, Granularity::kBlock128x128);
  expect(model::kCompressedTensors, {300, 3}, Granularity::kBlock1x128);
  expect(model::kCompressedTensors, {300, 5}, std::nullopt);
  expect(model::kModelOpt, {}, Granularity::kTensor);
  expect(model::kModelOpt, {300}, Granularity::kChannel);
  expect(model::kModelOpt, {3, 1, 3, 1}, Granularity::kBlock128x128);
  expect(model::kDeepSeekV3, {300}, std::nullopt);
  EXPECT_EQ(granularity_of(model::kFineGrainedFp8, std::vector<std::int64_t>{4, 300, 260},
                           std::vector<std::int64_t>{4, 3, 3}),
            Granularity::kBlock128x128);
}

NamedTensor codes(std::string name, std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return {std::move(name), SafetensorsDType::kF8E4M3, std::move(shape),
          std::string(as_size(count), '\x38')};
}

NamedTensor ones(std::string name, std::vector<std::int64_t> shape) {
  NamedTensor tensor = float_tensor(std::move(name), std::move(shape), 0);
  const float one = 1;
  for (std::size_t i = 0; i < tensor.bytes.size(); i += 4) {
    std::memcpy(tensor.bytes.data() + i, &one, 4);
  }
  return tensor;
}

TEST_F(Families, StaticInputsGoWhereTheyHaveAPlace) {
  std::vector<NamedTensor> tensors = {codes("a.weight", {64, 64}), ones("a.weight_scale", {1}),
                                      codes("b.weight", {64, 64}), ones("b.weight_scale", {1}),
                                      ones("a.input_scale", {1})};
  test::write_file(folder_ / "config.json",
                   R"({"quantization_config":{"quant_method":"compressed-tensors"}})");
  write_checkpoint(folder_ / "some.safetensors", tensors);
  tensors.push_back(ones("b.input_scale", {1}));
  write_checkpoint(folder_ / "all.safetensors", tensors);
  const auto dropped = [&](const char* input, CheckpointFamily family) {
    const test::Log quiet;
    std::filesystem::remove(folder_.out());
    const auto report = convert_checkpoint(folder_ / input, folder_.out(), {.family = family});
    return report.dropped;
  };
  const auto has = [&](const char* name) { return read_checkpoint(folder_.out()).contains(name); };
  EXPECT_EQ(dropped("all.safetensors", CheckpointFamily::kModelOpt), Names{});
  EXPECT_TRUE(has("a.input_scale"));
  EXPECT_EQ(dropped("all.safetensors", CheckpointFamily::kFineGrainedFp8), Names{});
  EXPECT_TRUE(has("a.activation_scale"));
  for (const auto family : {CheckpointFamily::kTorchao, CheckpointFamily::kDeepSeekV3}) {
    EXPECT_EQ(dropped("all.safetensors", family), (Names{"a.input_scale", "b.input_scale"}));
  }
  // A config that says one thing of all layers says "dynamic" where some have none.
  EXPECT_EQ(dropped("some.safetensors", CheckpointFamily::kFineGrainedFp8), Names{"a.input_scale"});
  EXPECT_EQ(dropped("some.safetensors", CheckpointFamily::kComfyUi), Names{});
  expect_error(ErrorCode::kInvalidArgument, {"'granularity'", "deepseek-v3", "got channel"}, [&] {
    convert_checkpoint(
        folder_ / "all.safetensors", folder_ / "c.safetensors",
        {.family = CheckpointFamily::kDeepSeekV3, .granularity = Granularity::kChannel});
  });
}

TEST_F(Families, SmallWeightsAmongBlocksCostNoOtherAnything) {
  // One scale for 64 x 64 is a tensor's as well as a block's.
  write_checkpoint(folder_.in(), {codes("a.weight", {64, 64}), ones("a.weight_scale", {1, 1}),
                                  codes("b.weight", {256, 256}), ones("b.weight_scale", {2, 2})});
  for (const CheckpointFamily family : checkpoint_families()) {
    if (family == CheckpointFamily::kCompressedTensors || family == CheckpointFamily::kComfyUi) {
      continue;
    }
    const auto output = folder_ / fmt::format("{}.safetensors", name(family));
    EXPECT_TRUE(convert_checkpoint(folder_.in(), output, {.family = family}).requantized.empty());
    for (const CheckpointWeight& weight : inspect_checkpoint(output).weights) {
      if (weight.name != "b.weight") continue;
      EXPECT_EQ(weight.granularity, Granularity::kBlock128x128);
    }
  }
}

TEST_F(Families, ConfigsOfWrongTypesAreNoCrash) {
  write_checkpoint(folder_.in(), {codes("a.weight", {8, 8})});
  const auto inspect = [&](const json& config) {
    test::write_file(folder_ / "config.json", config.dump());
    try {
      inspect_checkpoint(folder_.in());
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal);
    }
  };
  const json odd[] = {nullptr,        1,
                      -1.5,           "",
                      "fp8",          true,
                      json::array(),  json::array({1, "x"}),
                      json::object(), {{"quant_method", 3}}};
  for (const json& value : odd) {
    inspect(value.is_object() ? value : json{{"x", value}});
    inspect({{"quantization_config", value}});
    for (const char* method : {"fp8", "mxfp4", "compressed-tensors", "modelopt", "torchao"}) {
      for (const char* key : {"quant_method", "fmt", "weight_block_size", "config_groups",
                              "quant_algo", "quant_type"}) {
        json config = {{"quant_method", method}};
        config[key] = value;
        inspect({{"quantization_config", config}});
      }
      for (const char* key : {"num_bits", "type", "strategy", "block_structure", "group_size"}) {
        json weights = {{"num_bits", 8}, {"type", "float"}};
        weights[key] = value;
        for (const char* format : {"float-quantized", "nvfp4-pack-quantized"}) {
          inspect({{"quantization_config",
                    {{"quant_method", method},
                     {"format", format},
                     {"quant_algo", "NVFP4"},
                     {"config_groups", {{"g", {{"weights", weights}}}, {"h", value}}}}}});
        }
      }
    }
  }
}

TEST_F(Families, CodesThatAreNoMatrixAreWidened) {
  write_checkpoint(folder_.in(), {codes("a.weight", {4, 4, 3, 3})});
  const auto report =
      convert_checkpoint(folder_.in(), folder_.out(), {.family = CheckpointFamily::kTorchao});
  EXPECT_EQ(report.copied, Names{"a.weight"});
  EXPECT_EQ(read_checkpoint(folder_.out()).at("a.weight").dtype, SafetensorsDType::kBF16);
}

}  // namespace
}  // namespace octofold
