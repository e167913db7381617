// An inference engine as C++ programs have their own, to which FP8 products are added: tensors in
// an arena, a graph of nodes, and on a GPU one CUDA graph for all of them. What the engine needs
// for Octofold is the part between the two lines; the rest of it knows nothing of FP8.
//   ./inference_engine          on the CPU
//   ./inference_engine cuda     on a GPU, where the program was built with CUDA's runtime
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef ENGINE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

#include "octofold/octofold.h"

namespace engine {

bool on_gpu = false;

void check(int error, const char* what) {
  if (error != 0) throw std::runtime_error(std::string(what) + ": error " + std::to_string(error));
}

// All memory, taken once. Nothing is given back before the end.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    if (on_gpu) {
#ifdef ENGINE_HAS_CUDA
      check(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes), "cudaMalloc");
#endif
    } else {
      memory_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(256)));
    }
  }
  ~Arena() {
    if (!on_gpu) ::operator delete(memory_, std::align_val_t(256));
#ifdef ENGINE_HAS_CUDA
    if (on_gpu) cudaFree(memory_);
#endif
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* take(std::size_t bytes) {
    const std::size_t begin = (used_ + 255) / 256 * 256;
    if (begin + bytes > bytes_) throw std::runtime_error("the arena is full");
    used_ = begin + bytes;
    return memory_ + begin;
  }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0, used_ = 0;
};

struct Tensor {  // FP32, row-major
  float* data = nullptr;
  std::int64_t rows = 0, cols = 0;
};

// Bytes from the host to where the engine computes, or back.
void move(void* to, const void* from, std::size_t bytes) {
#ifdef ENGINE_HAS_CUDA
  if (on_gpu) return check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
#endif
  std::memcpy(to, from, bytes);
}

Tensor tensor(Arena& arena, std::int64_t rows, std::int64_t cols, const float* values = nullptr) {
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * sizeof(float);
  Tensor result{static_cast<float*>(arena.take(bytes)), rows, cols};
  if (values != nullptr) move(result.data, values, bytes);
  return result;
}

// ---- Octofold: weights in FP8, cast as they are loaded, and a layer that multiplies by them.
// -----

using namespace octofold;

Device device() { return {on_gpu ? DeviceType::kCuda : DeviceType::kCpu, 0}; }
MutableTensorView view(const Tensor& t) {
  return matrix(t.data, DType::kFloat32, t.rows, t.cols, -1, device());
}

struct Fp8Linear {
  CastTarget weight;
  LinearProblem problem;
  std::span<std::byte> workspace;

  Fp8Linear(Arena& arena, const Tensor& w, std::int64_t tokens) {
    const Format format{.granularity = Granularity::kBlock128x128};
    const ScaleLayout scales = scale_layout(format.granularity, w.rows, w.cols, device().type);
    void* codes = arena.take(static_cast<std::size_t>(w.rows * w.cols));
    void* scale = arena.take(static_cast<std::size_t>(scales.extent()) * sizeof(float));
    weight = {matrix(codes, format.dtype, w.rows, w.cols, -1, device()),
              scales.view(scale, device()), format};
    cast(view(w), {.rows = weight});
    problem = {.tokens = tokens,
               .in_features = w.cols,
               .out_features = w.rows,
               .recipe = {.output = {.a = {.granularity = Granularity::kBlock1x128}, .b = format}},
               .weight_is_cast = true,
               .device = device()};
    const auto bytes = static_cast<std::size_t>(linear_memory(problem).forward);
    workspace = {static_cast<std::byte*>(arena.take(bytes)), bytes};
  }
  void operator()(const Tensor& x, const Tensor& y, void* stream) const {
    linear_forward(
        problem,
        {.x = view(x), .weight = ScaledTensorView(weight), .y = view(y), .workspace = workspace},
        {stream});
  }
};

// ---- The engine again.
// ---------------------------------------------------------------------------

struct Node {
  Fp8Linear layer;
  Tensor x, y;
};

// Runs the nodes: on a GPU as one CUDA graph, which is captured at the first run.
class Graph {
 public:
  std::vector<Node> nodes{};

  void run() {
    if (!on_gpu) return queue(nullptr);
#ifdef ENGINE_HAS_CUDA
    if (graph_ == nullptr) {
      check(cudaStreamCreate(&stream_), "cudaStreamCreate");
      queue(stream_);  // kernels are compiled and loaded before they are captured
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
      queue(stream_);
      cudaGraph_t captured = nullptr;
      check(cudaStreamEndCapture(stream_, &captured), "capture");
      check(cudaGraphInstantiate(&graph_, captured, 0), "cudaGraphInstantiate");
      check(cudaGraphDestroy(captured), "cudaGraphDestroy");
    }
    check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
#endif
  }

 private:
  void queue(void* stream) const {
    for (const Node& node : nodes) node.layer(node.x, node.y, stream);
  }
#ifdef ENGINE_HAS_CUDA
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
#endif
};

}  // namespace engine

namespace {

std::vector<float> normal(std::size_t count, float size, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0, size);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

// x [rows, cols of w] · wᵀ on the host.
std::vector<float> product(const std::vector<float>& x, const std::vector<float>& w,
                           std::size_t depth) {
  const std::size_t rows = x.size() / depth, cols = w.size() / depth;
  std::vector<float> y(rows * cols);
  for (std::size_t i = 0; i < rows * cols; ++i) {
    double sum = 0;
    for (std::size_t k = 0; k < depth; ++k)
      sum += x[i / cols * depth + k] * w[i % cols * depth + k];
    y[i] = static_cast<float>(sum);
  }
  return y;
}

}  // namespace

int main(int argc, char** argv) try {
  engine::on_gpu = argc > 1 && std::string(argv[1]) == "cuda";
#ifndef ENGINE_HAS_CUDA
  if (engine::on_gpu) return std::fprintf(stderr, "built without CUDA's runtime\n"), 2;
#endif
  constexpr std::int64_t kTokens = 16, kHidden = 256, kInner = 512;
  const std::vector<float> up = normal(kInner * kHidden, 0.06F, 1);
  const std::vector<float> down = normal(kHidden * kInner, 0.04F, 2);

  engine::Arena arena(std::size_t{16} << 20U);
  const engine::Tensor x = engine::tensor(arena, kTokens, kHidden);
  const engine::Tensor h = engine::tensor(arena, kTokens, kInner);
  const engine::Tensor y = engine::tensor(arena, kTokens, kHidden);
  engine::Graph graph;
  graph.nodes.push_back(
      {{arena, engine::tensor(arena, kInner, kHidden, up.data()), kTokens}, x, h});
  graph.nodes.push_back(
      {{arena, engine::tensor(arena, kHidden, kInner, down.data()), kTokens}, h, y});

  double error = 0, norm = 0;
  for (const unsigned seed : {3U, 4U, 5U}) {  // the graph reads what is there when it runs
    const std::vector<float> tokens = normal(kTokens * kHidden, 1, seed);
    engine::move(x.data, tokens.data(), tokens.size() * sizeof(float));
    graph.run();
    std::vector<float> result(kTokens * kHidden);
    engine::move(result.data(), y.data, result.size() * sizeof(float));
    const std::vector<float> expected = product(product(tokens, up, kHidden), down, kInner);
    for (std::size_t i = 0; i < result.size(); ++i) {
      error += std::pow(result[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
  }
  std::printf("relative error against FP32: %.3f\n", std::sqrt(error / norm));
  return std::sqrt(error / norm) < 0.08 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
