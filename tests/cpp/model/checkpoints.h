// Checkpoints for tests: written with the writer, read back whole.
#pragma once

#include "octofold/cast.h"
#include "octofold/scale_layout.h"

#include "model/safetensors.h"
#include "support/targets.h"
#include "support/test.h"
#include "test_files.h"

namespace octofold::test {

struct NamedTensor {
  std::string name;
  model::SafetensorsDType dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

inline NamedTensor float_tensor(std::string name, std::vector<std::int64_t> shape, unsigned seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return {std::move(name), model::SafetensorsDType::kF32, std::move(shape),
          bytes_of(random_floats(count, seed))};
}

inline void write_checkpoint(const fs::path& path, const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata = {}) {
  std::vector<model::TensorInfo> infos;
  for (const NamedTensor& tensor : tensors) {
    infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  model::SafetensorsWriter writer(path, infos, metadata);
  for (const NamedTensor& tensor : tensors) {
    writer.write(tensor.name, 0, std::as_bytes(std::span(tensor.bytes)));
  }
  writer.finish();
}

inline std::map<std::string, NamedTensor> read_checkpoint(const fs::path& path) {
  const model::SafetensorsReader reader(path);
  std::map<std::string, NamedTensor> tensors;
  for (const model::TensorInfo& info : reader.tensors()) {
    std::string bytes(as_size(info.byte_count()), '\0');
    reader.read(info, 0, std::as_writable_bytes(std::span(bytes)));
    tensors[info.name] = {info.name, info.dtype, info.shape, std::move(bytes)};
  }
  return tensors;
}

/// Returns what a weight's codes and scales should be: one quantize() of the whole matrix.
inline std::pair<std::string, std::string> quantized(const NamedTensor& weight,
                                                     const Format& options = {}) {
  const std::int64_t rows = weight.shape[0];
  const std::int64_t cols = weight.shape[1];
  const auto shape = scale_shape(Granularity::kBlock128x128, rows, cols);
  std::string codes(as_size(rows * cols), '\0');
  std::vector<float> scales(as_size(shape[0] * shape[1]));
  cast(matrix(weight.bytes.data(), *model::quantizable_dtype(weight.dtype), rows, cols),
       test::by(options,
                {.rows = CastTarget{matrix(codes.data(), DType::kE4M3, rows, cols),
                                    matrix(scales.data(), DType::kFloat32, shape[0], shape[1]),
                                    {.granularity = Granularity::kBlock128x128}}}));
  return {std::move(codes), bytes_of(scales)};
}

/// Expects `weight` in FP8 among the tensors, with its scales.
inline void expect_quantized(const std::map<std::string, NamedTensor>& tensors,
                             const NamedTensor& weight, const Format& options = {}) {
  SCOPED_TRACE(weight.name);
  const auto [codes, scales] = quantized(weight, options);
  ASSERT_TRUE(tensors.contains(weight.name));
  ASSERT_TRUE(tensors.contains(weight.name + "_scale_inv"));
  const NamedTensor& data = tensors.at(weight.name);
  const NamedTensor& scale = tensors.at(weight.name + "_scale_inv");
  EXPECT_EQ(data.dtype, model::SafetensorsDType::kF8E4M3);
  EXPECT_EQ(data.shape, weight.shape);
  EXPECT_TRUE(data.bytes == codes);
  EXPECT_EQ(scale.dtype, model::SafetensorsDType::kF32);
  EXPECT_EQ(scale.shape, scale_shape(Granularity::kBlock128x128, weight.shape[0], weight.shape[1]));
  EXPECT_TRUE(scale.bytes == scales);
}

inline void expect_copied(const std::map<std::string, NamedTensor>& tensors,
                          const NamedTensor& tensor) {
  SCOPED_TRACE(tensor.name);
  ASSERT_TRUE(tensors.contains(tensor.name));
  const NamedTensor& copy = tensors.at(tensor.name);
  EXPECT_EQ(copy.dtype, tensor.dtype);
  EXPECT_EQ(copy.shape, tensor.shape);
  EXPECT_TRUE(copy.bytes == tensor.bytes);
}

}  // namespace octofold::test
