"""Builds DeepGEMM's extension in place, to be measured beside ours, on a machine without network:

    python bench/gpu/build_deepgemm.py FOLDER      then PYTHONPATH=FOLDER

FOLDER has its csrc and deep_gemm, fmt's headers as fmt/fmt, and CUTLASS's include/cute and
include/cutlass in deep_gemm/include, of the revisions that it names as submodules. About 40 s; its
kernels are compiled by nvcc at their first calls, 2 s each.
"""

import argparse
import pathlib
import shutil

from torch.utils.cpp_extension import CUDA_HOME, load


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder.resolve()
    build = folder / "build"
    build.mkdir(exist_ok=True)
    load(
        name="_C",
        sources=[str(folder / "csrc" / "python_api.cpp")],
        extra_include_paths=[
            str(folder / "deep_gemm" / "include"),
            str(folder / "fmt"),
            f"{CUDA_HOME}/include/cccl",
        ],
        extra_cflags=["-std=c++17", "-O1", "-w"],
        extra_ldflags=["-lnvrtc", "-lcuda"],
        build_directory=str(build),
        with_cuda=True,
        is_python_module=False,
    )
    shutil.copy(build / "_C.so", folder / "deep_gemm")


if __name__ == "__main__":
    main()
