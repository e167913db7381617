"""The yardstick of products with FP8 weights: FP16 by mma.sync, a kernel of our own without FP8.

    python bench/gpu/half_product.py RESULTS.jsonl [M/M/...,N,K ...]

Tiles are those of the kernels with FP8 weights; M, N and K have to be multiples of theirs. The
fastest stands for all, which weight_only.py times beside ours.
"""

import ctypes
import functools
import sys
from pathlib import Path

import torch
from common.measure import Build, Implementation, measure
from common.operands import calls_of, normal, relative_error, sets_of
from common.run import Run, new_parser, shapes_of, text_of
from mma_ceiling import nvrtc

SOURCE = Path(__file__).with_suffix(".cu")
# Columns and rows of a tile, warps along both, stages, and blocks that share K.
FEW_ROWS = ((128, 64, 4, 1, 4, 4), (128, 64, 2, 1, 4, 4), (256, 64, 8, 1, 3, 4))
MANY_ROWS = ((128, 128, 2, 2, 3, 1), (256, 128, 4, 2, 3, 1))
ERROR_LIMIT = 1e-3  # of the norm: FP16 results


def checked(result):
    assert result == 0, f"CUDA driver: error {result}"


@functools.cache
def functions(columns, rows, warps_columns, warps_rows, stages):
    """The product and combine(), as a GPU of this kind has them."""
    library, program = nvrtc(), ctypes.c_void_p()
    major, minor = torch.cuda.get_device_capability()
    defines = {"COLUMNS": columns, "ROWS": rows, "STAGES": stages}
    defines |= {"WARPS_COLUMNS": warps_columns, "WARPS_ROWS": warps_rows}
    options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++20"]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    name = SOURCE.name.encode(), 0, None, None
    assert library.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), *name) == 0
    assert library.nvrtcCompileProgram(program, len(options), arguments) == 0
    size = ctypes.c_size_t()
    assert library.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    cubin = ctypes.create_string_buffer(size.value)
    assert library.nvrtcGetCUBIN(program, cubin) == 0
    driver, module = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    checked(driver.cuModuleLoadData(ctypes.byref(module), cubin))
    found = []
    for function in (b"multiply", b"combine"):
        found.append(ctypes.c_void_p())
        checked(driver.cuModuleGetFunction(ctypes.byref(found[-1]), module, function))
    shared = max(128 * (columns + rows) * stages, 4 * rows * (columns + 4))
    most_dynamic_shared = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(driver.cuFuncSetAttribute(found[0], most_dynamic_shared, shared))
    return driver, *found, shared


def launch(driver, function, blocks, threads, shared, *values):
    values = [
        ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else ctypes.c_int(x)
        for x in values
    ]
    parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    grid, block = (blocks, 1, 1), (threads, 1, 1)
    checked(driver.cuLaunchKernel(function, *grid, *block, shared, stream, parameters, None))


def multiply(tile, partials, x, w, out):
    columns, rows, warps_columns, warps_rows, _, splits = tile
    driver, product, combine, shared = functions(*tile[:5])
    (m, k), n = x.shape, w.shape[0]
    blocks, threads = m // rows * (n // columns) * splits, 32 * warps_columns * warps_rows
    launch(driver, product, blocks, threads, shared, w, x, out, partials, m, n, k, splits)
    if splits > 1:
        launch(driver, combine, -(-m * n // 1024), 256, 0, partials, out, m * n // 4, splits)


def tiles_of(m, n, k):
    tiles = FEW_ROWS if m < 128 else MANY_ROWS
    return [t for t in tiles if m % t[1] == 0 and n % t[0] == 0 and k % (64 * t[5]) == 0]


def build(run, m, n, k, tile):
    def make():
        def operands():
            made = (normal(run, rows, k, dtype="float16") for rows in (m, n))
            return (*made, torch.empty(m, n, dtype=torch.float16, device=run.device))

        sets = sets_of(operands, 2 * (n * k + m * (n + k)), run)
        partials = torch.empty(tile[5] * m * n if tile[5] > 1 else 1, device=run.device)
        call = functools.partial(multiply, tile, partials)

        def error():
            x, w, out = sets[0]
            out.fill_(torch.nan)
            call(x, w, out)
            return relative_error(out, x.float() @ w.float().T)

        return Implementation(calls_of(call, sets), error, ERROR_LIMIT)

    columns, rows, warps_columns, warps_rows, stages, splits = tile
    name = f"FP16 by mma.sync {columns}x{rows}.w{warps_columns}x{warps_rows}.s{stages}.k{splits}"
    return Build(name, make, bytes=2 * n * k, operations=2 * m * n * k)


def main():
    parser = new_parser(__doc__, rounds=13, seconds=300)
    parser.add_argument("shapes", nargs="*", metavar="M,N,K")
    options = parser.parse_intermixed_args()
    with Run(options) as run:
        for m, n, k in run.cases(shapes_of(options.shapes or ["64/4096,4096,7168"])):
            made = [build(run, m, n, k, tile) for tile in tiles_of(m, n, k)]
            measure(run, "half product", text_of((m, n, k)), made)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
