"""Named sets of GEMM shapes (M, N, K) for `octofold bench gemm`.

N and K are those of the linear layers of well-known models; M is the number of tokens.
"""

from typing import TypeAlias

Shape: TypeAlias = tuple[int, int, int]

# DeepSeek-V3 (hidden 7168), the layers that DeepGEMM's benchmarks name.
_DEEPSEEK_V3 = (
    (2112, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
)

# Llama 3 70B (hidden 8192, FFN 28672, 8 KV heads of 128): qkv, attention output, gate and up, down.
_LLAMA_70B = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))

SUITES: dict[str, tuple[Shape, ...]] = {
    "deepseek-v3": tuple((m, n, k) for m in (1, 64, 128, 1024, 4096) for n, k in _DEEPSEEK_V3),
    "llama-70b": tuple((m, n, k) for m in (1, 128, 4096) for n, k in _LLAMA_70B),
    "square": tuple((size, size, size) for size in (256, 512, 1024, 2048, 4096)),
}
