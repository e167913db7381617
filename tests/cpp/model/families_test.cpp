#include <fmt/format.h>

#include "octofold/checkpoint.h"
#include "octofold/dequantize.h"

#include "checkpoints.h"
#include "model/contents.h"
#include "model/families/family.h"
#include "model/weight_scales.h"
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
using test::TestFolder;
using test::write_checkpoint;
using Families = test::FolderTest;

/// The values that a checkpoint's weight stands for.
std::vector<float> values_of(const std::filesystem::path& path, const std::string& name) {
  const CheckpointContents contents = inspect_checkpoint(path);
  for (const CheckpointWeight& weight : contents.weights) {
    if (weight.name != name) continue;
    const auto tensors = read_checkpoint(weight.codes.file);
    const NamedTensor& codes = tensors.at(weight.codes.name);
    std::vector<float> scales = {1.0F};
    if (weight.scale) {
      const NamedTensor scale = read_checkpoint(weight.scale->file).at(weight.scale->name);
      scales = model::floats_of(weight.scale->dtype, std::as_bytes(std::span(scale.bytes)));
    }
    const model::WeightScales all{weight.granularity, codes.shape[0], codes.shape[1], scales};
    const DType dtype = codes.dtype == SafetensorsDType::kF8E4M3 ? DType::kE4M3 : DType::kE5M2;
    std::vector<float> values(codes.shape[0] * codes.shape[1]);
    dequantize({matrix(codes.bytes.data(), dtype, codes.shape[0], codes.shape[1]),
                all.of({0, 0, codes.shape[0], codes.shape[1], codes.shape[1]}), weight.granularity},
               matrix(values.data(), DType::kFloat32, codes.shape[0], codes.shape[1]));
    return values;
  }
  ADD_FAILURE() << "no weight " << name << " in " << path;
  return {};
}

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

TEST_F(Families, EveryNumberOfAScaleIsRead) {
  const std::string powers("\x7f\x80\x00\xff", 4);
  const std::vector<float> values = model::floats_of("F8_E8M0", std::as_bytes(std::span(powers)));
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], 2.0F);
  EXPECT_EQ(values[2], 0x1p-127F);
  EXPECT_NE(values[3], values[3]);
  const std::string half("\x00\x3c", 2);
  EXPECT_EQ(model::floats_of("F16", std::as_bytes(std::span(half))), std::vector<float>{1.0F});
}

/// Every family's checkpoint of the same weights, in a folder of its own.
class FamilyPairs : public testing::TestWithParam<std::pair<CheckpointFamily, CheckpointFamily>> {};

TEST_P(FamilyPairs, ConversionKeepsWhatScalesCanSay) {
  const auto [from, to] = GetParam();
  const TestFolder folder;
  const bool fine = from == CheckpointFamily::kFineGrainedFp8;  // it takes no other blocks
  const NamedTensor weight = float_tensor("a.proj.weight", {fine ? 384 : 300, fine ? 256 : 260}, 1);
  const NamedTensor bias = float_tensor("a.proj.bias", {weight.shape[0]}, 2);
  write_checkpoint(folder.in(), {weight, bias}, {{"format", "pt"}});
  test::write_file(folder / "config.json", R"({"model_type":"x"})");
  for (const char* name : {"from", "to"}) std::filesystem::create_directory(folder / name);
  const auto source = folder.path() / "from/model.safetensors";
  const auto target = folder.path() / "to/model.safetensors";
  quantize_checkpoint(folder.in(), source, {.family = from});
  const test::Log quiet;
  const CheckpointReport report = convert_checkpoint(source, target, {.family = to});

  const CheckpointContents contents = inspect_checkpoint(target);
  EXPECT_EQ(contents.family, to);
  EXPECT_EQ(report.quantized, Names{"a.proj.weight"});
  EXPECT_EQ(report.copied, Names{"a.proj.bias"});
  EXPECT_EQ(report.input_bytes, model::SafetensorsReader(source).data_bytes());
  EXPECT_EQ(model::SafetensorsReader(target).metadata().at("format"), "pt");
  test::expect_copied(read_checkpoint(target), bias);
  const std::vector<float> before = values_of(source, "a.proj.weight");
  const std::vector<float> after = values_of(target, "a.proj.weight");
  if (report.requantized.empty()) {
    EXPECT_TRUE(before == after);
    EXPECT_EQ(read_checkpoint(source).at(inspect_checkpoint(source).weights[0].codes.name).bytes,
              read_checkpoint(target).at(contents.weights[0].codes.name).bytes);
  } else {
    double error = 0;
    double norm = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      error += (before[i] - after[i]) * (before[i] - after[i]);
      norm += before[i] * before[i];
    }
    EXPECT_LT(error, 0.04 * 0.04 * norm);
    EXPECT_FALSE(model::repeats(inspect_checkpoint(source).weights[0].granularity,
                                contents.weights[0].granularity));
  }
}

std::vector<std::pair<CheckpointFamily, CheckpointFamily>> pairs() {
  std::vector<std::pair<CheckpointFamily, CheckpointFamily>> pairs;
  for (const CheckpointFamily from : checkpoint_families()) {
    for (const CheckpointFamily to : checkpoint_families()) {
      if (from != to) pairs.emplace_back(from, to);
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(All, FamilyPairs, testing::ValuesIn(pairs()), [](const auto& instance) {
  std::string text =
      fmt::format("{}_to_{}", name(instance.param.first), name(instance.param.second));
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
});

TEST_F(Families, ScalesOfLargeTensorsAreThoseOfTheWhole) {
  // Of several tiles, with the largest magnitude in the last.
  NamedTensor weight = float_tensor("a.weight", {2100, 4100}, 1);
  const float largest = 1000;
  std::memcpy(weight.bytes.data() + weight.bytes.size() - 4, &largest, 4);
  write_checkpoint(folder_.in(), {weight});
  quantize_checkpoint(folder_.in(), folder_.out(), {.family = CheckpointFamily::kComfyUi});
  std::vector<float> scale(1);
  std::string codes(2100 * 4100, '\0');
  cast(matrix(weight.bytes.data(), DType::kFloat32, 2100, 4100),
       {.rows = CastTarget{matrix(codes.data(), DType::kE4M3, 2100, 4100),
                           vector(scale.data(), DType::kFloat32, 1),
                           {.granularity = Granularity::kTensor}}});
  const auto output = read_checkpoint(folder_.out());
  EXPECT_EQ(output.at("a.weight_scale").bytes, test::bytes_of(scale));
  EXPECT_TRUE(output.at("a.weight").bytes == codes);
}

TEST_F(Families, FusedExpertsAreStacksOfMatrices) {
  const NamedTensor experts = float_tensor("l.experts.gate_up_proj", {3, 200, 150}, 1);
  write_checkpoint(folder_.in(), {experts, float_tensor("a.weight", {9, 9}, 2)});
  const auto report = quantize_checkpoint(folder_.in(), folder_.out(),
                                          {.family = CheckpointFamily::kFineGrainedFp8});
  EXPECT_EQ(report.quantized.size(), 2u);
  const auto output = read_checkpoint(folder_.out());
  EXPECT_EQ(output.at("l.experts.gate_up_proj_scale_inv").shape,
            (std::vector<std::int64_t>{3, 2, 2}));
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::size_t size = 200 * 150;
    const NamedTensor one = {
        "x", experts.dtype, {200, 150}, experts.bytes.substr(4 * size * i, 4 * size)};
    const auto [codes, scales] = test::quantized(one);
    EXPECT_TRUE(output.at("l.experts.gate_up_proj").bytes.substr(size * i, size) == codes);
    EXPECT_EQ(output.at("l.experts.gate_up_proj_scale_inv").bytes.substr(16 * i, 16), scales);
  }
  expect_error(ErrorCode::kInvalidArgument, {"'granularity'", "l.experts.gate_up_proj"}, [&] {
    quantize_checkpoint(
        folder_.in(), folder_ / "no.safetensors",
        {.family = CheckpointFamily::kFineGrainedFp8, .granularity = Granularity::kTensor});
  });
  expect_error(ErrorCode::kInvalidArgument, {"'family'", "torchao", "l.experts.gate_up_proj"}, [&] {
    convert_checkpoint(folder_.out(), folder_ / "no.safetensors",
                       {.family = CheckpointFamily::kTorchao});
  });
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

TEST_F(Families, CheckpointsThatLieAreRefused) {
  const auto expect = [&](const std::vector<NamedTensor>& tensors, std::string_view config,
                          ErrorCode code, const std::vector<std::string>& parts) {
    write_checkpoint(folder_.in(), tensors);
    if (!config.empty()) test::write_file(folder_ / "config.json", config);
    expect_error(code, parts, [&] { inspect_checkpoint(folder_.in()); });
    std::filesystem::remove(folder_.in());
    std::filesystem::remove(folder_ / "config.json");
  };
  constexpr auto kBad = ErrorCode::kBadFormat;
  const auto method = [](std::string_view name, std::string_view more = "") {
    return fmt::format(R"({{"quantization_config":{{"quant_method":"{}"{}}}}})", name, more);
  };
  const NamedTensor a = codes("a.weight", {200, 200});
  expect({a}, method("fp8"), kBad, {"'a.weight'", "'a.weight_scale_inv'", "got none"});
  expect({a, ones("a.weight_scale", {3})}, method("fp8"), kBad, {"'a.weight_scale'", "[3]"});
  expect({a, ones("a.weight_scale_inv", {200, 2}), codes("b.weight", {2, 2})}, method("fp8"), kBad,
         {"'a.weight_scale_inv'", "codes [200,200]", "got [200,2]"});
  expect({float_tensor("a.weight", {2, 2}, 1)}, method("torchao"), kBad,
         {"torchao", "without FP8 tensors"});
  expect({a, ones("a.weight_scale_inv", {2, 2}), ones("b.weight_scale_inv", {1, 1})}, method("fp8"),
         kBad, {"'b.weight_scale_inv'", "a weight in 'b.weight'", "got none"});
  expect({a, ones("a.weight_scale_inv", {2, 2}), float_tensor("b.weight", {2, 2}, 1),
          ones("b.weight_scale_inv", {1, 1})},
         method("fp8"), kBad, {"'b.weight'", "'b.weight_scale_inv'", "got F32"});
  expect({a}, method("gptq"), ErrorCode::kUnsupported, {"quant_method", "gptq"});
  expect({a}, method("fp8", R"(,"weight_block_size":[64,64])"), ErrorCode::kUnsupported,
         {"finegrained-fp8", "weight_block_size", "[64,64]"});
  expect({a},
         method("compressed-tensors",
                R"(,"config_groups":{"g":{"weights":{"num_bits":4,"type":"int"}}})"),
         ErrorCode::kUnsupported, {"8-bit floats", "int"});
  expect({a}, method("modelopt", R"(,"quant_algo":"NVFP4")"), ErrorCode::kUnsupported,
         {"quant_algo", "NVFP4"});
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
    for (const char* method : {"fp8", "compressed-tensors", "modelopt", "torchao"}) {
      for (const char* key : {"quant_method", "fmt", "weight_block_size", "config_groups",
                              "quant_algo", "quant_type"}) {
        json config = {{"quant_method", method}};
        config[key] = value;
        inspect({{"quantization_config", config}});
      }
      for (const char* key : {"num_bits", "type", "strategy", "block_structure", "group_size"}) {
        json weights = {{"num_bits", 8}, {"type", "float"}};
        weights[key] = value;
        inspect({{"quantization_config",
                  {{"quant_method", method}, {"config_groups", {{"g", {{"weights", weights}}}}}}}});
      }
    }
  }
}

TEST_F(Families, ComfyUiFilesAreReadInAllTheirSpellings) {
  const auto contents = [&](const std::vector<NamedTensor>& tensors,
                            const std::map<std::string, std::string>& metadata = {}) {
    write_checkpoint(folder_.in(), tensors, metadata);
    const CheckpointContents found = inspect_checkpoint(folder_.in());
    std::filesystem::remove(folder_.in());
    EXPECT_EQ(found.family, CheckpointFamily::kComfyUi);
    return found;
  };
  const NamedTensor a = codes("a.weight", {20, 20});
  const CheckpointContents raw = contents({a, codes("a.bias", {20})});
  ASSERT_EQ(raw.weights.size(), 1u);
  EXPECT_FALSE(raw.weights[0].scale);
  EXPECT_EQ(raw.others.size(), 1u);
  // Nothing but what is no matrix: values without scales, that other families have in 16 bits.
  write_checkpoint(folder_ / "conv.safetensors", {codes("a.weight", {4, 4, 3, 3})});
  const auto report = convert_checkpoint(folder_ / "conv.safetensors", folder_ / "wide.safetensors",
                                         {.family = CheckpointFamily::kTorchao});
  EXPECT_EQ(report.copied, Names{"a.weight"});
  EXPECT_EQ(read_checkpoint(folder_ / "wide.safetensors").at("a.weight").dtype,
            SafetensorsDType::kBF16);
  const CheckpointContents old = contents(
      {a, ones("a.scale_weight", {1}), ones("a.scale_input", {1}),
       float_tensor("b.weight", {4, 4}, 1), ones("b.scale_weight", {}), codes("scaled_fp8", {0})});
  ASSERT_EQ(old.weights.size(), 1u);
  EXPECT_TRUE(old.weights[0].scale && old.weights[0].input_scale);
  const std::string hint = R"({"format":"float8_e4m3fn","full_precision_matrix_mult":true})";
  const NamedTensor note = {"a.comfy_quant", SafetensorsDType::kU8, {std::ssize(hint)}, hint};
  const CheckpointContents noted = contents({a, ones("a.weight_scale", {}), note});
  EXPECT_TRUE(noted.weights[0].full_precision);
  EXPECT_TRUE(noted.others.empty());
  const CheckpointContents said =
      contents({a, ones("a.weight_scale", {})},
               {{"_quantization_metadata", fmt::format(R"({{"layers":{{"a":{}}}}})", hint)}});
  EXPECT_TRUE(said.weights[0].full_precision);
}

}  // namespace
}  // namespace octofold
