// The parameters of routing kernels: the host passes one struct, by value. Strides count elements.
#pragma once

namespace octofold::config {

struct TopKParams {
  const void* logits;  // [tokens, experts]
  long long logits_stride;
  const float* bias;  // [experts]
  long long tokens;
  int experts;
  int slots;
  bool normalize;
  int groups;
  int top_groups;
  float scale;
  int* ids;        // [tokens, slots]
  float* weights;  // [tokens, slots]
  long long weights_stride;
};

struct TopKGradientParams {
  const float* gradient;  // [tokens, slots]
  long long gradient_stride;
  const void* logits;  // [tokens, experts]
  long long logits_stride;
  const int* ids;  // [tokens, slots]
  long long ids_stride;
  long long tokens;
  int experts;
  int slots;
  bool normalize;
  float scale;
  void* logits_gradient;  // [tokens, experts]
  long long logits_gradient_stride;
};

// The parameters of both kernels that sort slots.
struct SortParams {
  const int* ids;  // [slots / slots_per_token, slots_per_token]
  long long ids_stride;
  int slots;
  int slots_per_token;
  int experts;
  int span;        // slots of a block
  int spans;       // blocks
  int* histogram;  // [spans, experts]
  int* offsets;    // [experts + 1]
  int* sources;    // [slots]
  int* positions;  // [slots]
};

struct CombineParams {
  const void* y;  // [rows, cols]
  long long y_stride;
  long long rows;
  const int* positions;  // [tokens, slots]
  long long positions_stride;
  const float* weights;  // [tokens, slots]
  long long weights_stride;
  int slots;
  const void* c;  // [tokens, cols], as out
  long long c_stride;
  void* out;
  long long out_stride;
  long long cols;
};

struct CombineGradientParams {
  const void* gradient;  // [tokens, cols]
  long long gradient_stride;
  const void* y;  // [rows, cols]
  long long y_stride;
  long long rows;
  const int* positions;  // [tokens, slots]
  long long positions_stride;
  int slots;
  long long cols;
  float* weights_gradient;  // [tokens, slots]
  long long weights_gradient_stride;
};

struct ActivationDotsParams {
  const void* gradient;  // [rows, cols]
  long long gradient_stride;
  const void* x;  // [rows, cols], or gates and ups
  long long x_stride;
  long long rows;
  long long cols;
  const int* positions;  // [tokens, slots]
  long long positions_stride;
  long long tokens;
  int slots;
  const float* c;  // [tokens, slots], or null
  long long c_stride;
  float* dots;  // [tokens, slots]
  long long dots_stride;
};

struct ExpertSumsParams {
  const void* gradient;  // [tokens, cols], or of rows
  long long gradient_stride;
  const void* x;  // [rows, cols], or gates and ups
  long long x_stride;
  long long rows;
  long long cols;
  const int* offsets;    // [experts + 1]
  const int* sources;    // [rows]
  const float* weights;  // [tokens, slots]
  long long weights_stride;
  int slots;
  float* sums;  // [experts, cols], or those of gates and ups
  long long sums_stride;
};

}  // namespace octofold::config
