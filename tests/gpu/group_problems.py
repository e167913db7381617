"""Products of groups for sanitizer_problems.py: by every configuration, and with numbers of groups
that make no sense, with which nothing outside of the tensors may be read or written."""

from functools import partial

import octofold
import torch
from octofold._library import library

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
    return octofold.quantize(torch.randn(shape), granularity=granularity)


def by_group(granularity):
    """[GROUPS, N, K] whose squares begin with each group."""
    parts = [cast(N, K, granularity=granularity) for _ in range(GROUPS)]
    codes = torch.stack([part.data.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    return octofold.ScaledTensor(codes, torch.stack([p.scale for p in parts]), granularity)


def multiply(device, candidate, name, a, b, numbers, out, options):
    """On the device by a configuration, on the CPU by its one way."""
    tensors = (*(part.to(device) for x in (a, b) for part in (x.data, x.scale)), numbers.to(device))
    result = out.to(device)
    stream = torch.cuda.current_stream().cuda_stream if candidate else None
    call = getattr(library, f"{name}_by_candidate" if candidate else name)
    # what is left out between the numbers and the result: c and bias, as the operation has them
    call(*tensors, *options["left_out"], result, a.granularity, b.granularity, *options["others"],
         stream, *([candidate] if candidate else []))  # fmt: skip
    return result


def compare(device, candidate, name, a, b, numbers, shape, options, sensible):
    out = torch.zeros(shape)
    result = multiply(device, candidate, name, a, b, numbers, out, options)
    if not sensible:  # whatever is computed has no meaning
        return torch.ones(1), torch.ones(1)
    return result, multiply("cpu", None, name, a, b, numbers, out, options)


def group_problems(device):
    form = {"m": 1, "n": 1, "k": 1, "a": "e4m3", "b": "e4m3", "out": "float32"}
    rows_form = form | {"a_granularity": "1x128", "b_granularity": "128x128", "c": None}
    depth_form = form | {"a_granularity": "1x128", "b_granularity": "1x128", "c": None}
    on_gpu = device != "cpu"
    candidates = [
        list(map(str, library.grouped_gemm_candidates(f | {"bias": None}, depth)))
        for f, depth in ((rows_form, False), (depth_form, True))
    ] if on_gpu else [[None], [None]]  # fmt: skip
    one = {"left_out": (None,), "others": (False,)}
    two = {"left_out": (None, None), "others": (False,)}
    for offsets in OFFSETS if on_gpu else filter(make_sense, OFFSETS):
        numbers, sensible = torch.tensor(offsets, dtype=torch.int32), make_sense(offsets)
        a, b = cast(ROWS, K), by_group("128x128")
        for candidate in candidates[0]:
            yield (
                f"groups of rows {offsets} {candidate}",
                partial(
                    compare,
                    device,
                    candidate,
                    "grouped_gemm",
                    a,
                    b,
                    numbers,
                    (ROWS, N),
                    two,
                    sensible,
                ),
            )
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
        for candidate in candidates[1]:
            left, right = cast(72, columns), cast(N, columns)
            yield f"groups of K {offsets} {candidate}", partial(
                compare, device, candidate, "grouped_gemm_k", left, right, numbers,
                (GROUPS, 72, N), one, False,
            )  # fmt: skip
