// out[rows, columns] = x · Wᵀ in FP16 by mma.sync, with sums in FP32: what a product with FP8
// weights would be if there was nothing to decode. x and W come by cp.async into a ring of stages,
// whole tiles only, operands by ldmatrix a product ahead. Blocks may share the depth; combine()
// adds what they leave in `partials`. COLUMNS, ROWS: of a tile; WARPS_COLUMNS, WARPS_ROWS that
// share it; STAGES.
extern "C" __global__ void __launch_bounds__(32 * WARPS_COLUMNS * WARPS_ROWS)
    multiply(const unsigned char* w, const unsigned char* x, unsigned short* out, float* partials,
             int rows, int columns, int depth, int splits) {
  constexpr int kThreads = 32 * WARPS_COLUMNS * WARPS_ROWS;
  constexpr int kColumnTiles = COLUMNS / WARPS_COLUMNS / 16, kRowTiles = ROWS / WARPS_ROWS / 8;
  constexpr int kStage = 128 * (COLUMNS + ROWS);  // 64 of the depth: 128 bytes of each row
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned memory = (unsigned)__cvta_generic_to_shared(shared);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int split = blockIdx.x % splits, tile = blockIdx.x / splits;
  const int row_tiles = rows / ROWS;
  const int first_row = tile % row_tiles * ROWS, first_column = tile / row_tiles * COLUMNS;
  const int steps = depth / 64 / splits;
  const long long stride = 2ll * depth;
  const unsigned char* w_from =
      w + (first_column + thread / 8) * stride + 128ll * split * steps + thread % 8 * 16;
  const unsigned char* x_from =
      x + (first_row + thread / 8) * stride + 128ll * split * steps + thread % 8 * 16;
  const unsigned to = thread / 8 * 128 + (thread % 8 ^ thread / 8 % 8) * 16;
  const auto begin = [&](int slot) {
    const unsigned stage = memory + slot * kStage + to;
#pragma unroll
    for (int i = 0; i < (COLUMNS + ROWS) * 8 / kThreads; ++i) {
      const int row = i * kThreads / 8;
      const unsigned char* from =
          row < COLUMNS ? w_from + row * stride : x_from + (row - COLUMNS) * stride;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(stage + row * 128), "l"(from)
                   : "memory");
    }
    w_from += 128;
    x_from += 128;
  };
  const int warp_column = warp % WARPS_COLUMNS * kColumnTiles * 16;
  const int warp_row = warp / WARPS_COLUMNS * kRowTiles * 8;
  const int a_row = warp_column + lane % 16, b_row = warp_row + lane / 16 * 8 + lane % 8;
  unsigned a[2][kColumnTiles][4], b[2][kRowTiles][2];
  const auto load = [&](int slot, int k, int to) {
    const unsigned stage = memory + slot * kStage;
#pragma unroll
    for (int i = 0; i < kColumnTiles; ++i) {
      const unsigned at = stage + (a_row + 16 * i) * 128 + ((2 * k + lane / 16) ^ a_row % 8) * 16;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a[to][i][0]), "=r"(a[to][i][1]), "=r"(a[to][i][2]), "=r"(a[to][i][3])
                   : "r"(at)
                   : "memory");
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; i += 2) {
      const unsigned at =
          stage + (COLUMNS + b_row + 8 * i) * 128 + ((2 * k + lane / 8 % 2) ^ b_row % 8) * 16;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[to][i][0]), "=r"(b[to][i][1]), "=r"(b[to][i + 1][0]),
                     "=r"(b[to][i + 1][1])
                   : "r"(at)
                   : "memory");
    }
  };
  float sums[kColumnTiles][kRowTiles][4] = {};
  for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
    if (ahead < steps) begin(ahead);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
  __syncthreads();
  load(0, 0, 0);
  int slot = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int next = slot + 1 == STAGES ? 0 : slot + 1;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k == 3) {  // the next stage has landed, and nobody reads the one before this
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
        __syncthreads();
        if (step + STAGES - 1 < steps) begin(slot == 0 ? STAGES - 1 : slot - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
      }
      load(k < 3 ? slot : next, (k + 1) % 4, (k + 1) % 2);
#pragma unroll
      for (int i = 0; i < kColumnTiles * kRowTiles; ++i) {
        float (&c)[4] = sums[i % kColumnTiles][i / kColumnTiles];
        const unsigned (&of_a)[4] = a[k % 2][i % kColumnTiles];
        const unsigned (&of_b)[2] = b[k % 2][i / kColumnTiles];
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(of_a[0]), "r"(of_a[1]), "r"(of_a[2]), "r"(of_a[3]), "r"(of_b[0]), "r"(of_b[1]));
      }
    }
    slot = next;
  }
  // Sums by rows of out, 4 bytes more than a tile's width apart.
  __syncthreads();
  float* const of_tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kColumnTiles * kRowTiles * 4; ++i) {
    const int column = warp_column + i / (4 * kRowTiles) * 16 + lane / 4 + i % 4 / 2 * 8;
    const int row = warp_row + i / 4 % kRowTiles * 8 + lane % 4 * 2 + i % 2;
    of_tile[row * (COLUMNS + 4) + column] = sums[i / (4 * kRowTiles)][i / 4 % kRowTiles][i % 4];
  }
  __syncthreads();
  for (int i = thread; i < ROWS * COLUMNS / 4; i += kThreads) {
    const int row = i / (COLUMNS / 4), column = i % (COLUMNS / 4) * 4;
    const float4 four = *reinterpret_cast<float4*>(of_tile + row * (COLUMNS + 4) + column);
    const long long at = (long long)(first_row + row) * columns + first_column + column;
    if (splits == 1) {
      uint2 halves;
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves.x) : "f"(four.y), "f"(four.x));
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves.y) : "f"(four.w), "f"(four.z));
      *reinterpret_cast<uint2*>(out + at) = halves;
    } else {
      *reinterpret_cast<float4*>(partials + (long long)split * rows * columns + at) = four;
    }
  }
}

extern "C" __global__ void combine(const float4* partials, uint2* out, int fours, int splits) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= fours) return;
  float4 sum = {};
  for (int split = 0; split < splits; ++split) {
    const float4 part = partials[(long long)split * fours + i];
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  uint2 halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves.x) : "f"(sum.y), "f"(sum.x));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves.y) : "f"(sum.w), "f"(sum.z));
  out[i] = halves;
}
