// Keys and values for attentions that run on the host: sequences in memory of any layout, with NaN
// codes in place of all that does not count.
#pragma once

#include "octofold/attention_arguments.h"

#include "cpu/number_formats.h"
#include "kernels/attention/config/attention.h"
#include "support/test.h"

namespace octofold::test {

enum class ScaleKind { kNone, kTensor, kHead, kKeys };

struct AttentionCase {
  std::vector<int> queries{1, 1};
  std::vector<int> keys{70, 9};
  bool packed_queries = false;
  int heads = 4;
  int key_heads = 2;
  int window_left = -1;
  int window_right = -1;
  ScaleKind k_scale = ScaleKind::kNone;
  ScaleKind v_scale = ScaleKind::kNone;
  int splits = 1;
  float scale = 0.2f;
  int page_shift = 4;
  bool fp8_scores = false;
};

template <DType kType>
float decode(unsigned code) {
  if constexpr (kType == DType::kE4M3) return cpu::E4M3::decode(static_cast<std::uint8_t>(code));
  if constexpr (kType == DType::kE5M2) return cpu::E5M2::decode(static_cast<std::uint8_t>(code));
  if constexpr (kType == DType::kFloat16) {
    return cpu::Float16::decode(static_cast<std::uint16_t>(code));
  }
  return cpu::BFloat16::decode(static_cast<std::uint16_t>(code));
}
template <DType kType>
unsigned encode(float value) {
  if constexpr (kType == DType::kE4M3) return cpu::E4M3::encode(value, Overflow::kSaturate);
  if constexpr (kType == DType::kE5M2) return cpu::E5M2::encode(value, Overflow::kSaturate);
  if constexpr (kType == DType::kFloat16) return cpu::Float16::encode(value, Overflow::kNan);
  return cpu::BFloat16::encode(value, Overflow::kNan);
}

// A contiguous tensor of this shape.
inline TensorView tensor(const void* data, DType type, const std::vector<std::int64_t>& shape) {
  TensorView view{data, type, static_cast<std::int32_t>(shape.size()), {}, {}};
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
  }
  return view;
}
inline MutableTensorView tensor(void* data, DType type, const std::vector<std::int64_t>& shape) {
  const TensorView view = tensor(static_cast<const void*>(data), type, shape);
  return {data, type, view.rank, view.shape, view.strides};
}

// Keys or values.
template <DType kFp8>
class Side {
 public:
  // Places of keys in memory, which holds `rows` of them; pages are `scale_rows` at most.
  Side(const AttentionCase& given, int head_size, int offset, std::size_t rows,
       const std::vector<std::vector<std::size_t>>& places,
       const std::vector<std::vector<std::size_t>>& scale_rows, ScaleKind kind, std::size_t seed)
      : key_heads_(given.key_heads), head_size_(head_size), offset_(offset), kind_(kind) {
    Random random;
    for (std::size_t i = 0; i < seed; ++i) random();
    const auto width = as_size(key_heads_ * head_size);
    codes_.assign(rows * width + 64, 0x7F);
    for (std::size_t sequence = 0; sequence < places.size(); ++sequence) {
      for (std::size_t key = 0; key < as_size(given.keys[sequence]); ++key) {
        for (std::size_t i = 0; i < width; ++i) {
          const float value = static_cast<float>(static_cast<int>(random() % 4096)) / 999 - 2;
          codes_[as_size(offset) + places[sequence][key] * width + i] =
              static_cast<unsigned char>(encode<kFp8>(value));
        }
      }
    }
    scale_rows_ = scale_rows;
    for (std::size_t i = 0; i < (rows + 8) * as_size(key_heads_); ++i) {
      scales_.push_back(std::exp2f(static_cast<float>(i * 7 % 5) - 1.8f) * (i % 3 == 0 ? -1 : 1));
    }
    places_ = places;
  }

  float at(std::size_t sequence, int key, int head, int dim) const {
    const std::size_t row = places_[sequence][as_size(key)];
    const std::size_t heads = as_size(key_heads_);
    const std::size_t index = (row * heads + as_size(head)) * as_size(head_size_);
    float value = decode<kFp8>(codes_[as_size(offset_ + dim) + index]);
    const std::size_t own = as_size(head);
    if (kind_ == ScaleKind::kTensor) value *= scales_[0];
    if (kind_ == ScaleKind::kHead) value *= scales_[own];
    if (kind_ == ScaleKind::kKeys) {
      value *= scales_[scale_rows_[sequence][as_size(key)] * heads + own];
    }
    return value;
  }

  // A key's numbers, of all heads, become NaN.
  void spoil(std::size_t sequence, std::size_t key) {
    const auto width = as_size(key_heads_ * head_size_);
    const std::size_t first = as_size(offset_) + places_[sequence][key] * width;
    std::fill_n(codes_.begin() + static_cast<std::ptrdiff_t>(first), width, 0x7F);
  }

  // Scales of blocks in memory, from the first on.
  std::vector<float> scales_;

  // `shape`: of blocks and keys, in memory; and of scales that keys share.
  AttentionOperand view(std::vector<std::int64_t> shape,
                        std::vector<std::int64_t> scale_shape) const {
    for (const int size : {key_heads_, head_size_}) shape.push_back(size);
    AttentionOperand operand{.data = tensor(codes_.data() + offset_, kFp8, shape)};
    if (kind_ == ScaleKind::kNone) return operand;
    if (kind_ == ScaleKind::kTensor) scale_shape = {1};
    if (kind_ == ScaleKind::kHead) scale_shape = {key_heads_};
    if (kind_ == ScaleKind::kKeys) scale_shape.push_back(key_heads_);
    operand.scale = tensor(scales_.data(), DType::kFloat32, scale_shape);
    return operand;
  }

 private:
  int key_heads_, head_size_, offset_;
  ScaleKind kind_;
  std::vector<unsigned char> codes_;
  std::vector<std::vector<std::size_t>> places_, scale_rows_;
};

}  // namespace octofold::test
