// The GPU backend on one page: every operation, on checked arguments that lie on a device. Each
// queues its kernels on the stream and returns; the first call of a problem also plans it and
// loads its kernels. Errors are kUnsupported where the GPU has no kernel for a problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "octofold/attention_arguments.h"
#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"
#include "octofold/dot.h"
#include "octofold/norm_gradient.h"
#include "octofold/rotary.h"
#include "octofold/routing.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

#include "core/product.h"
#include "cuda/device.h"
#include "kernels/cast/config/cast.h"

namespace octofold::cuda {

// ---- Products.

/// octofold::gemm(), grouped_gemm() and gated_gemm(): one kernel. A candidate that the product
/// names is planned in each call: for tests and tuning.
void multiply(Device& device, const core::Product& product, Stream stream);

/// Products whose weights alone are FP8, with something to write.
void multiply(Device& device, const core::WeightOnlyProduct& product, Stream stream);

/// octofold::dot() of matrices of one row.
void dot(Device& device, const DotArguments& arguments, Stream stream);

/// octofold::attention(), of a `scale` that is not 0. Throws Error(kUnsupported) for more rows or
/// keys than kernels count.
void attention(Device& device, const AttentionArguments& arguments, Stream stream);

/// How many keys a sequence has at most, or of packed ones all have together.
std::int64_t key_count(const AttentionArguments& arguments);

// ---- Casts.

/// octofold::cast(): the targets that there are, from one read of the source. One kernel, or four
/// where a scale is worked out that is not known before all of it is read, one before them for the
/// statistics of a norm that they cannot find themselves, and another for what is worked out of
/// columns.
void cast(Device& device, const CastSource& source, const CastTargets& targets,
          const config::CastFormat& format, Stream stream);

/// The values that cast() reads of an activation or its gradient, of the type of what it is of.
void values(Device& device, const CastSource& source, const MutableTensorView& out, Stream stream);

/// A matrix, or a stack of them, and its targets, checked.
struct CheckedCast {
  TensorView source;
  CastTargets targets;
  config::CastFormat format;
};

/// octofold::cast_many(): casts of one kind by one launch, of each of the kernels that a cast
/// takes, for as many as fit into a kernel's parameters. Casts that cannot share one are queued as
/// by cast().
void cast_many(Device& device, std::span<const CheckedCast> casts, Stream stream);

/// octofold::dequantize().
void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream);

/// octofold::convert_dtype(), of rank 2.
void convert_dtype(Device& device, const TensorView& x, const MutableTensorView& out,
                   Overflow overflow, Stream stream);

/// octofold::transpose() of so many matrices, one below another in x and in out, both of rank 2.
void transpose(Device& device, const TensorView& x, const MutableTensorView& out,
               std::int64_t matrices, Stream stream);

// ---- Norms and embeddings.

/// octofold::norm(), to the numbers of a matrix.
void norm(Device& device, const Normed& source, const MutableTensorView& y, Stream stream);

/// The part of cast() that comes first where its source is normed: statistics and sum, by one
/// kernel. Returns true if that has also written the targets, as it does where it can.
bool normalize(Device& device, const Normed& source, const CastTargets& targets,
               const config::CastFormat& format, Stream stream);

/// octofold::norm_gradient().
void norm_gradient(Device& device, const NormGradientArguments& arguments,
                   const NormGradients& gradients, Stream stream);

/// octofold::rotary(): x of rank 4, cos and sin of rank 3.
void rotary(Device& device, const RotaryArguments& arguments, const MutableTensorView& y,
            Stream stream);

// ---- Routing: octofold's functions of these names.

void top_k(Device& device, const TopKArguments& arguments, const TopKOptions& options,
           Stream stream);
void top_k_gradient(Device& device, const TopKGradientArguments& arguments,
                    const TopKOptions& options, Stream stream);
void sort_by_expert(Device& device, const TensorView& ids, std::int64_t experts,
                    const SortedSlots& out, Stream stream);
void combine(Device& device, const CombineArguments& arguments, Stream stream);
void combine_gradient(Device& device, const CombineGradientArguments& arguments, Stream stream);
void activation_dots(Device& device, const ActivationDotsArguments& arguments, Stream stream);
void expert_sums(Device& device, const ExpertSumsArguments& arguments, Stream stream);

// ---- Memory. Each call returns when what it did is done.

/// So many bytes of zeros, at an address that is a multiple of 256. Throws Error(kUnavailable)
/// where the GPU has too few left.
void* allocate(const Device& device, std::size_t bytes);

void release(const Device& device, void* memory) noexcept;

/// Copies from anywhere to anywhere: host, this device, another one. One end is on `device`.
void copy(const Device& device, void* to, const void* from, std::size_t bytes);

}  // namespace octofold::cuda
