// A linear layer as part of a function: the memory of its casts, its products, and the checks of
// arguments that all layers have. include/octofold/linear.h has the problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"
#include "octofold/linear.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

#include "core/check.h"
#include "core/flatten.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// Hands out memory from its beginning, each part at a multiple of 256 bytes from there. Where
/// there is no memory the addresses count its bytes, and are not to be followed.
class Parts {
 public:
  Parts(std::byte* memory, Device device);

  CastTarget cast(std::int64_t rows, std::int64_t cols, const Format& format);
  /// So many matrices [rows, cols], each with scales of its own.
  CastTarget stack(std::int64_t matrices, std::int64_t rows, std::int64_t cols,
                   const Format& format);
  MutableTensorView numbers(DType type, std::int64_t rows, std::int64_t cols);
  MutableTensorView floats(std::int64_t count);
  MutableTensorView integers(std::int64_t count);
  std::int64_t bytes() const { return static_cast<std::int64_t>(end_ - begin_); }

 private:
  void* take(std::int64_t bytes);

  std::uintptr_t begin_, end_;
  Device device_;
};

/// A matrix, or the scales of one, as so many one below another.
template <typename View>
View stacked(View flat, std::int64_t matrices) {
  for (std::int32_t i = flat.rank; i > 0; --i) {
    flat.shape[i] = flat.shape[i - 1];
    flat.strides[i] = flat.strides[i - 1];
  }
  ++flat.rank;
  flat.shape[0] = matrices;
  flat.shape[1] /= matrices;
  flat.strides[0] = flat.shape[1] * flat.strides[1];
  return flat;
}

/// The casts that forward keeps for backward, as far as they are wanted.
struct KeptCasts {
  std::optional<CastTarget> x_transposed, weight_transposed;
};
KeptCasts kept_casts(const LinearProblem& problem, Parts& parts);

/// The operands that forward multiplies.
struct ForwardCasts {
  CastTarget x;
  std::optional<CastTarget> weight;
};
ForwardCasts forward_casts(const LinearProblem& problem, Parts& parts);

/// The operands that backward multiplies.
struct BackwardCasts {
  std::optional<CastTarget> dy, dy_transposed;
  std::optional<MutableTensorView> sums;  ///< float32 [out], where the bias has another type
  std::optional<MutableTensorView> sums_workspace;
};
BackwardCasts backward_casts(const LinearProblem& problem, Parts& parts);

using Weight = std::variant<TensorView, ScaledTensorView>;

/// Casts what two products read, if any: by one read of the source where one makes both. Columns
/// are reduced, and offsets say the layout of, the transpose.
void cast_operand(const CastSource& source, CastTargets targets, Stream stream);

/// Writes an activation or its gradient in numbers, of the type of what it is of.
void write_values(const CastSource& source, const MutableTensorView& out, Stream stream);

/// True if the first product of an MLP, its activation and the cast of that are one operation,
/// gated_gemm(), as far as backward keeps nothing of it.
bool is_gated_product(const LinearProblem& up, Activation activation, DType between, bool has_bias);

/// The weight as the output's product reads it, cast here unless it came as its cast.
ScaledTensorView weight_operand(const Weight& weight, const KeptCasts& kept,
                                const ForwardCasts& casts, Stream stream);

/// out = a · bᵀ (+ addend), as the product says.
void multiply(const LinearProduct& product, const ScaledTensorView& a, const ScaledTensorView& b,
              const MutableTensorView& out, std::optional<TensorView> c,
              std::optional<TensorView> bias, Stream stream);

/// The gradients that a layer gives, and what it takes for them besides its casts.
struct DenseGradients {
  std::optional<ScaledTensorView> weight_transposed{};  ///< where none was kept
  std::optional<MutableTensorView> dx{}, dw{}, db{};
  bool adds_to_dw = false;
};
void backward(const LinearProblem& problem, const CastSource& dy, const KeptCasts& kept,
              const BackwardCasts& casts, const DenseGradients& gradients, Stream stream);

/// The float32 [count] that an operation writes for `out`: that itself, or `space` where it is of
/// another type, as which write_floats() then writes them.
const MutableTensorView& floats_for(const MutableTensorView& out, const MutableTensorView& space);
void write_floats(const MutableTensorView& floats, const MutableTensorView& out, Stream stream);

/// The arguments by these names, for messages.
struct GradientNames {
  std::string_view dx{}, dw, db, weight_transposed;
};

/// The arguments of a layer: checks them, and remembers their memory, which is all apart.
class LayerArguments {
 public:
  LayerArguments(std::string_view operation, Device device);

  const core::Arguments& check() const { return check_; }
  void require_problem(const LinearProblem& problem) const;
  /// Throws unless an argument is there exactly where the problem wants it.
  void require_wanted(std::string_view argument, bool wanted, bool given) const;

  /// The matrix of so many rows and columns that a tensor with leading dimensions is, of float32,
  /// float16 or bfloat16; what is written if the view is a mutable one.
  template <typename View>
  View matrix(std::string_view argument, const View& given, std::int64_t rows, std::int64_t cols) {
    const View flat = core::flatten(check_, argument, given);
    add_matrix(argument, flat, rows, cols, std::is_same_v<View, MutableTensorView>);
    return flat;
  }
  template <typename View>
  std::optional<View> matrix(std::string_view argument, const std::optional<View>& given,
                             std::int64_t rows, std::int64_t cols) {
    return given ? std::optional(matrix(argument, *given, rows, cols)) : std::nullopt;
  }
  /// Numbers of one type alone: [rows, cols], likewise.
  TensorView matrix_of(std::string_view argument, const TensorView& given, DType type,
                       std::int64_t rows, std::int64_t cols);
  /// A contiguous vector, which the operation that takes it looks at besides.
  void add_vector(std::string_view argument, const std::optional<TensorView>& given);
  void add_vector(std::string_view argument, const std::optional<MutableTensorView>& given);
  /// The weight [out, in] of a problem, as numbers or as its cast.
  Weight weight(std::string_view argument, const Weight& given, const LinearProblem& problem);
  /// The weights [matrices, out, in] of as many such problems: as the matrix below each other, or
  /// as their casts.
  Weight weights(std::string_view argument, const Weight& given, const LinearProblem& problem,
                 std::int64_t matrices);
  /// A cast of [matrices, rows, cols] in this format, or of the other FP8 type.
  void add_stack(std::string_view argument, const ScaledTensorView& given, const Format& format,
                 std::int64_t matrices, std::int64_t rows, std::int64_t cols);
  /// The gradients that a problem wants, and the cast of the weight's transpose where it wants one
  /// to be given. Without a name dx is nobody's argument.
  DenseGradients gradients(const LinearProblem& problem, const GradientNames& names,
                           const DenseGradients& given);
  /// The weight and bias of a norm, which has no others here.
  void add_operands(const NormOperands& given);
  void require_no_operands(const NormOperands& given) const;
  /// So many bytes of the caller's memory.
  void add_memory(std::string_view argument, std::span<const std::byte> given, std::int64_t bytes,
                  bool is_written);
  void require_all_apart() const { inputs_.require_all_apart(); }

 private:
  void add_matrix(std::string_view argument, const TensorView& flat, std::int64_t rows,
                  std::int64_t cols, bool is_written);
  void require_cast(std::string_view argument, const ScaledTensorView& given,
                    const Format& format) const;
  void require_kind(std::string_view argument, bool is_cast, bool wants_cast) const;
  void add_cast(std::string_view argument, const ScaledTensorView& given, const Format& format);

  core::Arguments check_;
  Device device_;
  Inputs inputs_;
};

}  // namespace octofold::ops
