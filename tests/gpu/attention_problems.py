"""Small problems of attention, and of rotated queries and keys, for sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch

from tests.gpu.targets import does_what_hopper_does
from tests.gpu.word_problems import rotary_problems

MOST = 2**31 - 1


def _halves(*shape):
    return torch.randn(shape).half()


def _codes(*shape, dtype=torch.float8_e4m3fn):
    return torch.randn(shape).to(dtype)


def _attend(problem, options, device):
    """`out` and the logarithms, as one."""

    def run(device):
        arrays = {name: array.to(device) for name, array in problem.items()}
        pair = octofold.attention(**arrays, **options, return_log_sum_exp=True)
        return torch.cat([result.flatten().float().cpu() for result in pair]).nan_to_num(neginf=0)

    return run(device), run("cpu")


def _attend_latent(heads, size, value_size, device):
    """Values that are numbers of the keys."""
    q, k = _halves(2, 2, heads, size), _codes(2, 300, 1, size)
    scale = torch.rand(2, 3, 1) + 0.5

    def run(device):
        keys, scales = k.to(device), scale.to(device)
        return octofold.attention(
            q.to(device), keys, keys[..., :value_size], k_scale=scales, v_scale=scales, causal=True
        ).float()

    return run(device).cpu(), run("cpu")


def _lied(problem, sound, device):
    """With arrays such as nobody should give; what can be compared is the call without them."""
    octofold.attention(**{name: array.to(device) for name, array in problem.items()}, causal=True)
    return _attend(sound, {}, device)


def _pages(queries, size, value_size=None):
    shape = 9, 16, 2
    order = torch.randperm(9)[:6].view(2, 3).int()
    counts = torch.tensor([45, 7], dtype=torch.int32)
    problem = {"q": _halves(2, queries, 4, size), "k": _codes(*shape, size)}
    problem["v"] = _codes(*shape, value_size or size)
    scales = {name: torch.rand(9, 2) + 0.5 for name in ("k_scale", "v_scale")}
    return problem | scales | {"key_counts": counts, "page_table": order}


def _behind(queries, keys):
    def offsets(lengths):
        return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)

    shape = sum(keys), 2, 64
    problem = {"q": _halves(sum(queries), 4, 64), "k": _codes(*shape), "v": _codes(*shape)}
    return problem | {"query_offsets": offsets(queries), "key_offsets": offsets(keys)}


def attention_problems(device):
    yield from rotary_problems(device)
    # Head sizes that fill tiles and do not, few queries and many, split keys.
    for size, (queries, keys) in itertools.product(
        (8, 64, 72, 128, 256, 512), ((1, 1), (3, 1500), (70, 130))
    ):
        shape = 2, keys, 2, size
        v = _codes(*shape, dtype=torch.float8_e5m2)
        problem = {"q": _halves(2, queries, 4, size), "k": _codes(*shape), "v": v}
        problem |= {"k_scale": torch.rand(2, -(-keys // 128), 2), "v_scale": torch.rand(2)}
        for options in ({}, {"causal": True}, {"window": (20, 3)}):
            name = f"attention {size} {queries},{keys} {options}"
            yield name, partial(_attend, problem, options, device)
    for heads, sizes in itertools.product((8, 128), ((576, 512), (192, 128))):
        name = f"attention latent {heads} {sizes}"
        yield name, partial(_attend_latent, heads, *sizes, device)
    for queries in (1, 40):
        problem = _pages(queries, 128)
        yield f"attention pages {queries}", partial(_attend, problem, {"causal": True}, device)
    for sizes in ((192, 128), (64, 256)):
        problem = _pages(80, *sizes)
        yield f"attention values {sizes}", partial(_attend, problem, {"causal": True}, device)
    for size in (64, 72, 128) if does_what_hopper_does(device) else ():
        options = {"causal": True, "compute": "fp8"}
        yield f"attention fp8 {size}", partial(_attend, _pages(80, size), options, device)
    lengths = ([1, 0, 2], [30, 4, 300]), ([70, 1, 5], [70, 200, 0])
    for queries, keys in lengths:
        name = f"attention offsets {queries} {keys}"
        yield name, partial(_attend, _behind(queries, keys), {"causal": True}, device)
    if device == "cpu":
        return  # its backend raises
    for queries, lie in itertools.product((1, 40), (-1, 9, MOST, -MOST)):
        sound = _pages(queries, 64)
        for name in ("page_table", "key_counts"):
            problem = sound | {name: torch.full_like(sound[name], lie)}
            yield f"attention {name} {lie} {queries}", partial(_lied, problem, sound, device)
    for (queries, keys), lie in itertools.product(
        lengths, ([MOST] * 4, [-MOST] * 4, [500, 60, 2, 0], [-300, 5000, 7, -1])
    ):
        sound = _behind(queries, keys)
        for name in ("query_offsets", "key_offsets"):
            problem = sound | {name: torch.tensor(lie, dtype=torch.int32)}
            yield f"attention {name} {lie} {queries}", partial(_lied, problem, sound, device)
