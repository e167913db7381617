"""Products of groups for sanitizer_problems.py: by every configuration, and with numbers of groups
that make no sense, with which nothing outside of the tensors may be read or written. And casts of
their weights."""

import itertools
from functools import partial

import octofold
import torch
from octofold._core.library import library

OFFSETS = (
    (0, 5, 5, 70, 200),
    (0, 0, 130, 131, 131),
    (0, 7, 50, 50, 50),
    (-7, 300, 20, 2**31 - 1, 90),
    (2**31 - 1, 0, -(2**31), 50, 3),
)
ROWS, GROUPS, N, K = 203, 4, 264, 400


def has_products_of_hopper(device):
    """Others than dense ones, which GPUs that multiply by warps have; candidates' names too."""
    if device == "cpu":
        return True
    gpu = octofold.info().gpus[torch.cuda.current_device()]
    return gpu.operations["grouped products"].available


def make_sense(offsets):
    return offsets[0] == 0 and list(offsets) == sorted(offsets) and offsets[-1] <= ROWS


def cast(*shape, granularity="1x128"):
    return octofold.quantize(torch.randn(shape), granularity)


def by_group(granularity):
    """[GROUPS, N, K] whose squares begin with each group."""
    parts = [cast(N, K, granularity=granularity) for _ in range(GROUPS)]
    codes = torch.stack([part.data.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    return octofold.ScaledTensor(codes, torch.stack([p.scale for p in parts]), granularity)


def multiply(device, candidate, name, a, b, numbers, out, options):
    """On the device by a configuration, on the CPU by its one way. In place, where there is a C."""
    tensors = (*(part.to(device) for x in (a, b) for part in (x.data, x.scale)), numbers.to(device))
    result = out.to(device)
    left_out = [result if each == "out" else each for each in options["left_out"]]
    stream = torch.cuda.current_stream().cuda_stream if candidate else None
    call = getattr(library, f"{name}_by_candidate" if candidate else name)
    # what is left out between the numbers and the result: c and bias, as the operation has them
    call(*tensors, *left_out, result, a.granularity, b.granularity, *options["others"],
         stream, *([candidate] if candidate else []))  # fmt: skip
    return result


def compare(device, candidate, name, a, b, numbers, shape, options, sensible):
    out = torch.ones(shape)
    result = multiply(device, candidate, name, a, b, numbers, out, options)
    if not sensible:  # whatever is computed has no meaning
        return torch.ones(1), torch.ones(1)
    return result, multiply("cpu", None, name, a, b, numbers, out, options)


def candidates_of(b, c, in_depth, device):
    if device == "cpu":
        return [None]
    form = {"m": 1, "n": 1, "k": 1, "a": "e4m3", "b": "e4m3", "out": "float32", "bias": None}
    form |= {"a_granularity": "1x128", "b_granularity": b, "c": c}
    return [str(name) for name in library.grouped_gemm_candidates(form, in_depth)]


def group_problems(device):
    on_gpu = device != "cpu"
    alone, added = (candidates_of("128x128", c, False, device) for c in (None, "float32"))
    onto_c = [name for name in added if not name or name.endswith(".onto_c")]
    in_depth = candidates_of("1x128", "float32", True, device)
    depth_options = {"left_out": ("out",), "others": (False,)}
    row_options = {"left_out": (None, None), "others": (False,)}
    added_options = {"left_out": ("out", None), "others": (False,)}
    for offsets in OFFSETS if on_gpu else filter(make_sense, OFFSETS):
        numbers, sensible = torch.tensor(offsets, dtype=torch.int32), make_sense(offsets)
        a, b = cast(ROWS, K), by_group("128x128")
        for names, options in ((alone, row_options), (onto_c, added_options)):
            for candidate in names:
                yield f"groups of rows {offsets} {candidate}", partial(
                    compare, device, candidate, "grouped_gemm", a, b, numbers, (ROWS, N), options,
                    sensible,
                )  # fmt: skip
        masked = octofold.ScaledTensor(
            a.data[:200].view(GROUPS, 50, K), a.scale[:200].reshape(GROUPS, 50, -1), "1x128"
        )
        counts = numbers[1:]
        fits = sensible and max(offsets) <= 50
        if fits or on_gpu:
            yield f"masked groups {offsets}", partial(
                compare, device, None, "masked_gemm", masked, b, counts, (GROUPS, 50, N),
                {"left_out": (None,), "others": (False, None)}, fits,
            )  # fmt: skip
        columns = 128 * (ROWS // 128 + GROUPS)
        for candidate in in_depth:
            left, right = cast(72, columns), cast(N, columns)
            yield f"groups of K {offsets} {candidate}", partial(
                compare, device, candidate, "grouped_gemm_k", left, right, numbers,
                (GROUPS, 72, N), depth_options, False,
            )  # fmt: skip
    yield from stacks(device)


def stack(device, x, options):
    """Codes and scales of both casts."""

    def run(x):
        casts = octofold.quantize_both(x, matrices=GROUPS, **options)
        parts = [part for cast in casts for part in (cast.data.view(torch.uint8), cast.scale)]
        return torch.cat([part.flatten().float().cpu() for part in parts])

    return run(x.to(device)), run(x)


def stacks(device):
    """Matrices that end with a tile, within one, and with no whole vector."""
    kinds = [(granularity, None) for granularity in ("tensor", "channel", "1x128", "128x128")]
    kinds += [("1x128", "channel"), ("1x128", "128x128")]
    for (rows, cols), kind, dtype in itertools.product(
        ((256, 128), (136, 272), (131, 77)), kinds, (torch.bfloat16, torch.float32)
    ):
        x = torch.randn(GROUPS, rows, cols).to(dtype)
        options = dict(zip(("granularity", "transposed_granularity"), kind, strict=True))
        yield f"stack {kind} {rows},{cols} {dtype}", partial(stack, device, x, options)
