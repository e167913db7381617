"""Products of groups for sanitizer_problems.py: by every configuration, and with numbers of groups
that make no sense, with which nothing outside of the tensors may be read or written. And casts of
their weights."""

import itertools
from functools import partial

import octofold
import torch
from octofold import Depth, Masked, Rows, tuning

from tests.gpu.targets import candidate_names
from tests.python.casting import GRANULARITIES, cast_with

OFFSETS = (
    (0, 5, 5, 70, 200),
    (0, 0, 130, 131, 131),
    (0, 7, 50, 50, 50),
    (-7, 300, 20, 2**31 - 1, 90),
    (2**31 - 1, 0, -(2**31), 50, 3),
)
ROWS, GROUPS, N, K = 203, 4, 264, 400


def make_sense(offsets):
    return offsets[0] == 0 and list(offsets) == sorted(offsets) and offsets[-1] <= ROWS


def cast(*shape, granularity="1x128"):
    return octofold.quantize(torch.randn(shape), granularity)


def by_group(granularity):
    """[GROUPS, N, K] whose squares begin with each group."""
    parts = [cast(N, K, granularity=granularity) for _ in range(GROUPS)]
    codes = torch.stack([part.data.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    return octofold.ScaledTensor(codes, torch.stack([p.scale for p in parts]), granularity)


def multiply(device, candidate, a, b, groups, out, in_place):
    """On the device by a configuration, on the CPU by its one way."""
    a, b = (
        octofold.ScaledTensor(x.data.to(device), x.scale.to(device), x.granularity) for x in (a, b)
    )
    result, numbers = out.to(device), groups[0].to(device)
    c = result if in_place else None
    with tuning.using(candidate):
        return octofold.grouped_gemm(a, b, type(groups)(numbers), c=c, out=result)


def compare(device, candidate, a, b, groups, shape, in_place, sensible):
    out = torch.ones(shape)
    result = multiply(device, candidate, a, b, groups, out, in_place)
    if not sensible:  # whatever is computed has no meaning
        return torch.ones(1), torch.ones(1)
    return result, multiply("cpu", None, a, b, groups, out, in_place)


def candidates_of(groups, device, *phrases):
    if device == "cpu":
        return [None]
    return candidate_names("grouped_gemm", groups, "out float32", *phrases)


def group_problems(device):
    on_gpu = device != "cpu"
    alone = candidates_of("groups 4 of rows", device)
    added = candidates_of("groups 4 of rows", device, "c float32")
    onto_c = [name for name in added if not name or name.endswith(".onto_c")]
    in_depth = candidates_of("groups 4 of k", device, "b e4m3 1x128", "c float32")
    for offsets in OFFSETS if on_gpu else filter(make_sense, OFFSETS):
        numbers, sensible = torch.tensor(offsets, dtype=torch.int32), make_sense(offsets)
        a, b, rows = cast(ROWS, K), by_group("128x128"), Rows(numbers)
        for names, in_place in ((alone, False), (onto_c, True)):
            for candidate in names:
                yield (
                    f"groups of rows {offsets} {candidate}",
                    partial(compare, device, candidate, a, b, rows, (ROWS, N), in_place, sensible),
                )
        masked = octofold.ScaledTensor(
            a.data[:200].view(GROUPS, 50, K), a.scale[:200].reshape(GROUPS, 50, -1), "1x128"
        )
        fits = sensible and max(offsets) <= 50
        if fits or on_gpu:
            counts, shape = Masked(numbers[1:]), (GROUPS, 50, N)
            yield (
                f"masked groups {offsets}",
                partial(compare, device, None, masked, b, counts, shape, False, fits),
            )
        columns = 128 * (ROWS // 128 + GROUPS)
        for candidate in in_depth:
            left, right, depth = cast(72, columns), cast(N, columns), Depth(numbers)
            yield (
                f"groups of K {offsets} {candidate}",
                partial(
                    compare, device, candidate, left, right, depth, (GROUPS, 72, N), True, False
                ),
            )
    yield from stacks(device)


def stack(device, x, options):
    """Codes and scales of both casts."""

    def run(x):
        casts = cast_with(x, targets="both", matrices=GROUPS, **options)[:2]
        parts = [part for cast in casts for part in (cast.data.view(torch.uint8), cast.scale)]
        return torch.cat([part.flatten().float().cpu() for part in parts])

    return run(x.to(device)), run(x)


def stacks(device):
    """Matrices that end with a tile, within one, and with no whole vector."""
    kinds = [(granularity, None) for granularity in GRANULARITIES]
    kinds += [("1x128", "channel"), ("1x128", "128x128")]
    for (rows, cols), kind, dtype in itertools.product(
        ((256, 128), (136, 272), (131, 77)), kinds, (torch.bfloat16, torch.float32)
    ):
        x = torch.randn(GROUPS, rows, cols).to(dtype)
        options = dict(zip(("granularity", "transposed_granularity"), kind, strict=True))
        yield f"stack {kind} {rows},{cols} {dtype}", partial(stack, device, x, options)
