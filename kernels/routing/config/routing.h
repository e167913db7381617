// The configurations of the kernels that route tokens to experts and back, and of the one that
// checks groups.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// Numbers by their FP32 bits as integers of the same order: -0 as 0, NaN above all. 0 is no
// number's: it is left for what is not to be chosen.
constexpr unsigned order_of_bits(unsigned bits) {
  const unsigned magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0xFFFFFFFFu;
  return bits > 0x80000000u ? ~bits : magnitude | 0x80000000u;
}
// The bits of a number of that order.
constexpr unsigned bits_of_order(unsigned order) {
  return order >= 0x80000000u ? order & 0x7FFFFFFFu : ~order;
}

constexpr bool is_wide(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// The k best experts of each token: a warp to a token, lane l having the experts l, l + 32, ...
struct TopKConfig {
  DType in = DType::kFloat32;
  Scoring scoring = Scoring::kSoftmax;
  bool biased = false;
  bool grouped = false;
  int per_lane = 8;  // experts of a lane

  static constexpr const char* kHeader = "kernels/routing/top_k.h";
  static constexpr const char* kKernel = "top_k_kernel";
  static constexpr const char* kTypeName = "octofold::config::TopKConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("scoring", scoring);
    field("biased", biased);
    field("grouped", grouped);
    field("per_lane", per_lane);
  }
  friend constexpr bool operator==(const TopKConfig&, const TopKConfig&) = default;

  static constexpr int kMostExperts = 1024;
  static constexpr int kMostSlots = 32;  // a lane to each
  static constexpr int kMostGroups = 32;
  static constexpr int kTokens = 4;  // of a block
  constexpr int threads() const { return 32 * kTokens; }

  constexpr const char* invalid_reason() const {
    if (!is_wide(in)) return "the input has to be float32, float16 or bfloat16";
    if (per_lane < 1 || per_lane > kMostExperts / 32)
      return "per_lane has to be from 1 to 32 experts";
    if (scoring == Scoring::kSoftmax && (biased || grouped))
      return "a bias and groups need sigmoid scoring";
    return nullptr;
  }
};

struct TopKGradientConfig {
  DType in = DType::kFloat32;
  Scoring scoring = Scoring::kSoftmax;
  int per_lane = 8;

  static constexpr const char* kHeader = "kernels/routing/top_k_gradient.h";
  static constexpr const char* kKernel = "top_k_gradient_kernel";
  static constexpr const char* kTypeName = "octofold::config::TopKGradientConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("scoring", scoring);
    field("per_lane", per_lane);
  }
  friend constexpr bool operator==(const TopKGradientConfig&, const TopKGradientConfig&) = default;

  static constexpr int kTokens = TopKConfig::kTokens;
  constexpr int threads() const { return 32 * kTokens; }

  constexpr const char* invalid_reason() const {
    return TopKConfig{.in = in, .per_lane = per_lane}.invalid_reason();
  }
};

// Slots are cut into spans, one to a block of threads, as many as slot_spans() says. The longer
// they are, the fewer histograms each block has to add up.
inline constexpr long long kLeastSpan = 2048;
inline constexpr long long kMostSpans = 128;
constexpr long long slots_per_span(long long slots) {
  return kLeastSpan * (slots / (kLeastSpan * kMostSpans) + 1);
}
constexpr long long slot_spans(long long slots) {
  return ceil_divide(slots, slots_per_span(slots));
}

// How often each expert comes in each span.
struct SlotCountConfig {
  int experts = 256;  // there is room for

  static constexpr const char* kHeader = "kernels/routing/sort.h";
  static constexpr const char* kKernel = "count_slots_kernel";
  static constexpr const char* kTypeName = "octofold::config::SlotCountConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("experts", experts);
  }
  friend constexpr bool operator==(const SlotCountConfig&, const SlotCountConfig&) = default;

  static constexpr int kMostExperts = 2048;
  static constexpr int kSharedCounters = 8192;
  // Each warp counts for itself.
  constexpr int warps() const { return experts < 1024 ? 8 : kSharedCounters / experts; }
  constexpr int threads() const { return 32 * warps(); }

  constexpr const char* invalid_reason() const {
    if (experts < 256 || experts > kMostExperts || experts % threads() != 0) {
      return "experts has to be 256, 512, 1024 or 2048";
    }
    return nullptr;
  }
};

// The kernel that finds where the rows of each expert begin, and which slot goes to which of them.
struct SlotPlaceConfig {
  SlotCountConfig count{};
  bool alone = false;  // one span: nothing was counted before

  static constexpr const char* kHeader = SlotCountConfig::kHeader;
  static constexpr const char* kKernel = "place_slots_kernel";
  static constexpr const char* kTypeName = "octofold::config::SlotPlaceConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("count", count);
    field("alone", alone);
  }
  friend constexpr bool operator==(const SlotPlaceConfig&, const SlotPlaceConfig&) = default;

  constexpr int threads() const { return count.threads(); }
  constexpr const char* invalid_reason() const { return count.invalid_reason(); }
};

// Elements that a thread loads at a time where two matrices go together: 16 bytes of the wider.
constexpr int shared_vector(DType left, DType right) {
  return 16 / (size_of(left) > size_of(right) ? size_of(left) : size_of(right));
}

// The weighted sum of rows, a token to a block of threads.
struct CombineConfig {
  DType in = DType::kBFloat16;
  DType out = DType::kBFloat16;
  bool weighted = true;
  bool adds = false;    // to C
  bool vectors = true;  // whether all matrices can be accessed in whole vectors
  int row_threads = 256;

  static constexpr const char* kHeader = "kernels/routing/combine.h";
  static constexpr const char* kKernel = "combine_kernel";
  static constexpr const char* kTypeName = "octofold::config::CombineConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("out", out);
    field("weighted", weighted);
    field("adds", adds);
    field("vectors", vectors);
    field("row_threads", row_threads);
  }
  friend constexpr bool operator==(const CombineConfig&, const CombineConfig&) = default;

  static constexpr int kVectorsPerThread = 2;
  static constexpr int kSlots = 4;  // whose rows are on their way at one time
  static constexpr int kMostThreads = 512;
  constexpr int vector() const { return shared_vector(in, out); }
  constexpr int threads() const { return row_threads; }

  constexpr const char* invalid_reason() const {
    if (!is_wide(in) || !is_wide(out)) return "the input has to be float32, float16 or bfloat16";
    if (row_threads < 32 || row_threads > kMostThreads || row_threads % 32 != 0) {
      return "row_threads has to be a multiple of 32 up to 512";
    }
    return nullptr;
  }
};

// The gradient by the weights, a token to a block of threads.
struct CombineGradientConfig {
  DType gradient = DType::kBFloat16;
  DType in = DType::kBFloat16;
  bool vectors = true;
  int row_threads = 256;

  static constexpr const char* kHeader = "kernels/routing/combine_gradient.h";
  static constexpr const char* kKernel = "combine_gradient_kernel";
  static constexpr const char* kTypeName = "octofold::config::CombineGradientConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("gradient", gradient);
    field("in", in);
    field("vectors", vectors);
    field("row_threads", row_threads);
  }
  friend constexpr bool operator==(const CombineGradientConfig&,
                                   const CombineGradientConfig&) = default;

  static constexpr int kVectorsPerThread = CombineConfig::kVectorsPerThread;
  static constexpr int kSlots = CombineConfig::kSlots;
  constexpr int vector() const { return shared_vector(gradient, in); }
  constexpr int threads() const { return row_threads; }

  constexpr const char* invalid_reason() const {
    return CombineConfig{.in = in, .out = gradient, .row_threads = row_threads}.invalid_reason();
  }
};

// The same gradient by what was before the second product: a warp to a slot.
struct ActivationDotsConfig {
  DType in = DType::kBFloat16;
  Activation activation = Activation::kSwiGlu;
  bool vectors = true;  // whether both matrices, and halves, can be accessed in whole vectors

  static constexpr const char* kHeader = "kernels/routing/activation_dots.h";
  static constexpr const char* kKernel = "activation_dots_kernel";
  static constexpr const char* kTypeName = "octofold::config::ActivationDotsConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("activation", activation);
    field("vectors", vectors);
  }
  friend constexpr bool operator==(const ActivationDotsConfig&,
                                   const ActivationDotsConfig&) = default;

  static constexpr int kVectorsPerThread = 2;
  static constexpr int kSlots = 8;  // of a block
  constexpr int vector() const { return 16 / size_of(in); }
  constexpr int threads() const { return 32 * kSlots; }

  constexpr const char* invalid_reason() const {
    return is_wide(in) ? nullptr : "the input has to be float32, float16 or bfloat16";
  }
};

// The sums of experts' rows, times weights: a block of threads to an expert and some columns, a
// warp to every kWarps-th row.
struct ExpertSumsConfig {
  DType in = DType::kBFloat16;
  bool activated = false;  // rows are gradients by what an activation takes
  Activation activation = Activation::kSwiGlu;
  bool vectors = true;

  static constexpr const char* kHeader = "kernels/routing/expert_sums.h";
  static constexpr const char* kKernel = "expert_sums_kernel";
  static constexpr const char* kTypeName = "octofold::config::ExpertSumsConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("activated", activated);
    if (activated) field("activation", activation);
    field("vectors", vectors);
  }
  friend constexpr bool operator==(const ExpertSumsConfig&, const ExpertSumsConfig&) = default;

  static constexpr int kWarps = 8;
  static constexpr int kRows = 2;  // of a warp, on their way at one time
  constexpr int vector() const { return 16 / size_of(in); }
  constexpr int columns() const { return 32 * vector(); }  // of a block
  constexpr int halves() const { return activated && is_gated(activation) ? 2 : 1; }
  constexpr int threads() const { return 32 * kWarps; }

  constexpr const char* invalid_reason() const {
    return is_wide(in) ? nullptr : "the input has to be float32, float16 or bfloat16";
  }
};

// ---- The check of the numbers that groups are given by, where OCTOFOLD_CHECK_GROUPS asks for it.

// An entry that is not what it has to be, in host memory, as a kernel leaves it there.
struct GroupFault {
  enum State : unsigned { kNone, kBeingWritten, kWhole };

  unsigned state;
  int argument;  // whose it is: src/cuda/group_check.h has the names
  bool ascends;
  long long index;
  int value;
  int before;  // the entry before it, where they have to ascend
  int low;     // what it might have been
  int high;
  int unit = 1;
};

struct GroupCheckConfig {
  bool ascends = false;  // offsets: from 0 on, never less than before

  static constexpr const char* kHeader = "kernels/routing/group_check.h";
  static constexpr const char* kKernel = "group_check_kernel";
  static constexpr const char* kTypeName = "octofold::config::GroupCheckConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("ascends", ascends);
  }
  friend constexpr bool operator==(const GroupCheckConfig&, const GroupCheckConfig&) = default;

  constexpr int threads() const { return 512; }  // one block
};

struct GroupCheckParams {
  const int* numbers;  // [count / cols, cols]
  long long stride;    // elements
  int cols;
  int count;  // of all
  int low;    // entries are low … high, multiples of the unit
  int high;
  int unit = 1;
  int argument;
  GroupFault* fault;
};

}  // namespace octofold::config
