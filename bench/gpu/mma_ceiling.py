"""The rate of mma.sync alone on this GPU: warps that only multiply what lies in registers.

    python bench/gpu/mma_ceiling.py RESULTS.jsonl [--dtype bfloat16 float16 e4m3]

A warp has 2 × 4 or 4 × 4 accumulators, of as many fragments of A and B, and an SM one block of 4, 8
or 16 warps. A launch takes about 1.5 ms. Operands are random numbers, which cost power as those of
products do, and ones. Every sum is checked before a launch is timed: of ones exactly. Hopper has no
mma.sync of e4m3: the compiler makes it of FP16's and additions, and that is what is timed there.
"""

import ctypes
import functools
import os
import sys
from pathlib import Path

import torch
from common.measure import Build, Implementation, measure
from common.run import Run, new_parser
from octofold._core.library import _nvrtc_of_wheels
from octofold._timing import Method, event_seconds

# PTX's name of the type, K of the instruction, numbers of a word, and the architecture it needs.
TYPES = {
    "bfloat16": (torch.bfloat16, "bf16", 16, (8, 0)),
    "float16": (torch.float16, "f16", 16, (8, 0)),
    "e4m3": (torch.float8_e4m3fn, "e4m3", 32, (8, 9)),
}
TILES = ((2, 4), (4, 4))  # fragments of A and of B
WARPS = (4, 8, 16)
STEPS = 1024  # of a pass, after which the accumulators' sum is kept and they are 0 again
LAUNCH = 1.5e-3  # seconds
METHOD = Method("events", passes=1)
SOURCE = """
extern "C" __global__ void __launch_bounds__(512)
multiply(const unsigned* a_words, const unsigned* b_words, double* sums, int passes) {
  const int lane = threadIdx.x % 32, group = lane / 4, part = lane % 4;
  unsigned a[ROWS][4], b[COLUMNS][2];
  for (int i = 0; i < ROWS; ++i)
    for (int r = 0; r < 4; ++r)  // rows of 8 words
      a[i][r] = a_words[i * 128 + (group + r % 2 * 8) * 8 + part + r / 2 * 4];
  for (int j = 0; j < COLUMNS; ++j)
    for (int r = 0; r < 2; ++r) b[j][r] = b_words[j * 64 + group * 8 + part + r * 4];
  double sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    float c[ROWS][COLUMNS][4] = {};
#pragma unroll 4
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
          asm volatile("mma.sync.aligned.m16n8k" SHAPE_K ".row.col.f32." TYPE "." TYPE ".f32 "
                       "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                       : "+f"(c[i][j][0]), "+f"(c[i][j][1]), "+f"(c[i][j][2]), "+f"(c[i][j][3])
                       : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]),
                         "r"(b[j][0]), "r"(b[j][1]));
    float of_pass = 0;
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < COLUMNS; ++j)
        of_pass += (c[i][j][0] + c[i][j][1]) + (c[i][j][2] + c[i][j][3]);
    sum += of_pass;
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""


@functools.cache
def nvrtc():
    """The library that Octofold would take; its second half lies beside it."""
    chosen = os.environ.get("OCTOFOLD_NVRTC")
    files = [chosen] if chosen else [*_nvrtc_of_wheels(), "/usr/local/cuda/lib64/libnvrtc.so"]
    reasons = []
    for file in [*files, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            library = ctypes.CDLL(file)
        except OSError as reason:
            reasons.append(str(reason))
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        beside = Path(file).parent / f"libnvrtc-builtins.so.{major.value}.{minor.value}"
        if beside.is_file():
            ctypes.CDLL(str(beside))
        return library
    raise RuntimeError(f"no NVRTC: {'; '.join(reasons)}")


def compiled(dtype, tile, architecture):
    """A cubin, and what the compiler says of it."""
    library, program = nvrtc(), ctypes.c_void_p()
    _, name, k, _ = TYPES[dtype]
    defines = {"ROWS": tile[0], "COLUMNS": tile[1], "STEPS": STEPS}
    defines |= {"TYPE": f'"{name}"', "SHAPE_K": f'"{k}"'}
    options = [f"--gpu-architecture={architecture}", "--ptxas-options=--verbose"]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    source = SOURCE.encode()
    result = library.nvrtcCreateProgram(ctypes.byref(program), source, b"mma.cu", 0, None, None)
    assert result == 0, f"nvrtcCreateProgram: {result}"
    result = library.nvrtcCompileProgram(program, len(options), arguments)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert result == 0, f"nvrtcCompileProgram: {result}\n{log.value.decode()}"
    assert library.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    cubin = ctypes.create_string_buffer(size.value)
    assert library.nvrtcGetCUBIN(program, cubin) == 0
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin, log.value.decode()


class Kernel:
    """mma.sync of one type, with one tile to a warp."""

    def __init__(self, dtype, tile):
        self.dtype, self.tile = dtype, tile
        torch.zeros(1, device="cuda")  # torch's context is this thread's now
        self.driver = ctypes.CDLL("libcuda.so.1")
        major, minor = torch.cuda.get_device_capability()
        self.cubin, _ = compiled(dtype, tile, f"sm_{major}{minor}")
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.checked(self.driver.cuModuleLoadData(ctypes.byref(self.module), self.cubin))
        name = ctypes.byref(self.function), self.module, b"multiply"
        self.checked(self.driver.cuModuleGetFunction(*name))
        device = torch.cuda.current_device()
        self.blocks = torch.cuda.get_device_properties(device).multi_processor_count

    @staticmethod
    def checked(result):
        assert result == 0, f"CUDA driver: error {result}"

    def operands(self, data):
        torch_type, _, k, _ = TYPES[self.dtype]
        shapes = (self.tile[0], 16, k), (self.tile[1], 8, k)
        make = torch.ones if data == "ones" else torch.randn
        return [make(shape, device="cuda").to(torch_type) for shape in shapes]

    def launch(self, a, b, sums, passes, warps):
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (a, b, sums)]
        values = [*pointers, ctypes.c_int(passes)]
        parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = (self.blocks, 1, 1), (32 * warps, 1, 1)
        self.checked(
            self.driver.cuLaunchKernel(self.function, *grid, *block, 0, stream, parameters, None)
        )

    def sums(self, warps):
        return torch.full((self.blocks, warps, 32), torch.nan, dtype=torch.double, device="cuda")

    def flops(self, passes, warps):
        _, _, k, _ = TYPES[self.dtype]
        fragments = self.tile[0] * self.tile[1]
        return 2 * 16 * 8 * k * fragments * STEPS * passes * warps * self.blocks

    def error(self, a, b, sums, passes):
        """Lane 4g + t has rows g and g + 8 and columns 2t and 2t + 1 of every accumulator."""
        total = a.double().sum(0) @ b.double().sum(0).T  # of all pairs of fragments
        lanes = total.view(2, 8, 4, 2).sum((0, 3)).view(32) * (STEPS * passes)
        return float((sums - lanes).norm() / lanes.expand_as(sums).norm())

    def build(self, warps, data):
        a, b = self.operands(data)
        sums = self.sums(warps)
        launch = functools.partial(self.launch, a, b, sums, warps=warps)
        launch(passes=16)
        seconds = event_seconds(lambda: launch(passes=16))
        passes = max(1, round(LAUNCH / seconds * 16))

        def error():
            sums.fill_(torch.nan)
            launch(passes=passes)
            return self.error(a, b, sums, passes)

        # FP8 units may keep 14 bits of a sum.
        limit = 0.0 if data == "ones" else 0.1 if self.dtype == "e4m3" else 1e-3
        made = Implementation([lambda: launch(passes=passes)], error, limit, method=METHOD)
        name = f"{warps} warps × {self.tile[0] * self.tile[1]} accumulators"
        return Build(name, lambda: made, operations=self.flops(passes, warps))


@functools.cache
def kernel(dtype, tile):
    return Kernel(dtype, tile)


def builds(dtype, data):
    return [kernel(dtype, tile).build(warps, data) for tile in TILES for warps in WARPS]


@functools.cache
def best_build(run, dtype="bfloat16"):
    """Returns the build that is fastest on random numbers, to be timed among other things."""
    results = measure(run, "mma.sync", dtype, builds(dtype, "random"))
    best = max(results.values(), key=lambda result: result.facts["tflops"]).build
    return Build(f"mma.sync alone, {best.name}", best.make, operations=best.operations)


def main():
    parser = new_parser(__doc__, rounds=13, seconds=300)
    parser.add_argument("--dtype", nargs="*", default=list(TYPES), choices=list(TYPES))
    options = parser.parse_args()
    with Run(options) as run:
        cases = [(dtype, data) for dtype in options.dtype for data in ("random", "ones")]
        for dtype, data in run.cases(cases):
            if torch.cuda.get_device_capability() < TYPES[dtype][3]:
                print(f"{dtype}: not on this GPU")
                continue
            measure(run, "mma.sync", f"{dtype} {data}", builds(dtype, data))
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
