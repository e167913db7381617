"""The verdict of `octofold info`: what was seen to run, and what to do about what does not."""

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import octofold

from .measure import error_limit, relative_error

_STANDS_ON = ("apache-tvm-ffi", "numpy", "ml_dtypes", "torch", "cupy", "jax", "jax-tvm-ffi")
_M, _N, _K = 96, 80, 384


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    result: str
    """ok: it works. absent: it is not here, and all else works without. amiss: it is here, and does
    not do what it should."""
    detail: str
    advice: str = ""
    """The step to take about it."""

    @property
    def is_of_product(self) -> bool:
        """True if it is named after the device that multiplied."""
        return self.name == "cpu" or self.name.startswith("cuda:")


def versions() -> dict[str, str]:
    """Versions of Python and of installed packages that Octofold meets, which are not imported."""
    found = {"Python": platform.python_version()}
    for name in _STANDS_ON:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def checks(info: octofold.Info) -> list[Check]:
    """Checks a product on each backend, the compiler and the cache."""
    return [
        _product("cpu", np.asarray),
        *_vectors(info),
        *_gpus(info),
        _compiler(info),
        _cache(info),
    ]


def verdict(found: list[Check]) -> str:
    """In a sentence."""
    amiss = [check.name for check in found if check.result == "amiss"]
    works = [check.name for check in found if check.result == "ok" and check.is_of_product]
    on = f"FP8 products are right on {' and '.join(works)}" if works else "no product is right"
    return f"{on}; {'amiss: ' + ', '.join(amiss) if amiss else 'nothing is amiss'}."


def _vectors(info: octofold.Info) -> Iterator[Check]:
    if "SSE2" in info.cpu.detail:
        yield Check(
            "cpu vectors",
            "amiss",
            "SSE2 alone: products take several times as long as with AVX2",
            "where the processor is of 2015 or later, let the virtual machine show it "
            "(QEMU: -cpu host)",
        )


def _gpus(info: octofold.Info) -> Iterator[Check]:
    if not info.driver.available:
        yield Check(
            "gpu",
            "absent",
            info.driver.detail,
            "for a GPU, install NVIDIA's driver (CUDA 12.0 or later)",
        )
    elif not info.gpus:
        yield Check("gpu", "absent", "the driver shows none", "look at CUDA_VISIBLE_DEVICES")
    for gpu in info.gpus:
        name = f"cuda:{gpu.index}"
        if not gpu.backend.available:
            yield Check(name, "absent", gpu.backend.detail, "docs/which.md says what needs what")
        else:
            yield _on_gpu(name, gpu)


def _on_gpu(name: str, gpu: octofold.Gpu) -> Check:
    try:
        import torch

        if torch.cuda.is_available():
            return _product(name, lambda array: torch.from_numpy(array).to(name))
        why = f"torch {torch.__version__} sees no GPU"
    except ImportError:
        why = "torch is not installed"
    return Check(
        name,
        "absent",
        f"no product was tried: {why}",
        "install a torch with CUDA, which holds the arrays on the GPU",
    )


def _product(name: str, place: Any) -> Check:
    """FP8 codes with block scales, as the GPU multiplies them, against FP64's product of them."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, _K), np.float32) for rows in (_M, _N))
    try:
        x, w = octofold.quantize(place(a)), octofold.quantize(place(b), "128x128")
        product = octofold.gemm(x, w, out_dtype="float32")
        wide = [_on_host(cast.dequantize()).astype(np.float64) for cast in (x, w)]
        error = relative_error(_on_host(product), wide[0] @ wide[1].T)
    except (octofold.Error, RuntimeError) as failure:
        return Check(name, "amiss", str(failure).splitlines()[0], "see `octofold info --matrix`")
    limit = error_limit("float32", _M * _N)
    detail = f"relative error {error:.1e} against FP64, at most {limit:.0e} is right"
    if error <= limit:
        return Check(name, "ok", detail)
    return Check(name, "amiss", detail, "report it, with this page: results are wrong")


def _on_host(array: Any) -> Any:
    return array.cpu().numpy() if hasattr(array, "cpu") else np.asarray(array)


def _needs_kernels(info: octofold.Info) -> bool:
    return any(gpu.backend.available for gpu in info.gpus)


def _compiler(info: octofold.Info) -> Check:
    if info.nvrtc.available:
        return Check("nvrtc", "ok", info.nvrtc.detail)
    result = "amiss" if _needs_kernels(info) else "absent"
    return Check("nvrtc", result, info.nvrtc.detail, "pip install 'octofold[gpu]'")


def _cache(info: octofold.Info) -> Check:
    missed = "amiss" if _needs_kernels(info) else "absent"
    folder = octofold.kernel_cache.folder()
    advice = "name a folder in OCTOFOLD_CACHE_DIR, or kernels are compiled in each process"
    if folder is None:
        return Check("cache", missed, "kernels are not kept: there is no folder for them", advice)
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check("cache", missed, f"{folder} cannot be written to", advice)
    kernels = octofold.kernel_cache.entries()
    detail = f"{folder}: {len(kernels)} kernels, {sum(k.bytes for k in kernels) / 1e6:.1f} MB"
    broken = [kernel for kernel in kernels if kernel.fault]
    if broken and broken[0].file == folder:
        return Check("cache", "amiss", f"{folder} is not used: {broken[0].fault}", advice)
    if broken:
        return Check("cache", "amiss", f"{detail}, {len(broken)} broken", "octofold cache clear")
    return Check("cache", "ok", detail)
