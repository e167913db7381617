"""Attention on a GPU: offsets, counts and tables that lie; graphs and streams; what has no
kernels."""

import numpy as np
import octofold

from tests.gpu.gpu_support import (
    DEVICE,
    Surrounded,
    assert_same_bits,
    captured,
    needs_gpu,
    refuses_bfloat16,
    torch,
    where_bfloat16_is_refused,
)
from tests.gpu.targets import does_what_hopper_does
from tests.python import attention_cases as cases
from tests.python.attention_cases import dense, packed, paged, with_scales

FEW, MANY = (2, 3, 700), (2, 150, 290)  # batch, queries, keys: kernels for both
HAS_FP8_SCORES = does_what_hopper_does(DEVICE.type)


def on_device(problem):
    return {name: cases.to_torch(array, DEVICE) for name, array in problem.items()}


def numbers(tensor):
    return tensor.detach().double().cpu().numpy()


@where_bfloat16_is_refused
def test_refuses_bfloat16(rng):
    for sizes in (FEW, MANY):
        tensors = on_device(dense(rng, *sizes, q="bfloat16"))
        with refuses_bfloat16():
            octofold.attention(**tensors)


def hostile_problems(rng):
    """Arguments of attention whose page tables, counts or offsets are false."""
    most = 2**31 - 1
    for queries in (1, 40):
        problem = paged(rng, queries, [90, 40, 64], 32)
        for table in (-1, most, -most, len(problem["k"])):
            yield problem | {"page_table": np.full_like(problem["page_table"], table)}
        for count in (-1, most, -most, 4000):
            yield problem | {"key_counts": np.full(3, count, np.int32)}
    for lengths in ([1, 2, 1], [70, 3, 60]):
        problem = packed(rng, lengths, [100, 60, 64])
        total = sum(lengths)
        for offsets in (
            [total, 60, 2, 0],
            [most] * 4,
            [-most] * 4,
            [-300, 5 * total, 7, -1],
            [0, -most, most, total],
        ):
            for name in ("query_offsets", "key_offsets"):
                yield problem | {name: np.int32(offsets)}
            yield problem | {"query_offsets": np.int32(offsets), "key_offsets": np.int32(offsets)}


@needs_gpu
def test_lies_lead_nowhere_outside(rng):
    """Memory in front of `out` and behind it stays as it was; nothing faults."""
    for problem in hostile_problems(rng):
        tensors = on_device(problem)
        q = tensors["q"]
        rows = q.numel() // q.shape[-1]
        around = Surrounded(3 * rows, q.shape[-1], q.dtype)
        middle = around.view[rows : 2 * rows]
        scaled = {"k_scale": torch.ones(1, device=DEVICE)}
        octofold.attention(**tensors, **scaled, causal=True, out=middle.view(q.shape))
        torch.cuda.synchronize()
        assert around.view[:rows].isnan().all()
        assert around.view[2 * rows :].isnan().all()


@needs_gpu
def test_graphs_follow_counts_and_tables(rng):
    """A captured call computes what its arrays say at the replay."""
    first, second = (paged(rng, 1, keys, 32) for keys in ([300, 20], [17, 310]))
    tensors = on_device(first)
    graph, out = captured(lambda: octofold.attention(**tensors, softmax_scale=0.02))
    for name, tensor in on_device(second).items():
        tensors[name].view(torch.uint8).copy_(tensor.view(torch.uint8))
    graph.replay()
    expected = cases.attend(**second, softmax_scale=0.02)
    cases.assert_attended(numbers(out), None, expected, "float16")


@needs_gpu
def test_fp8_scores_are_allowed_everywhere(rng):
    """If kernels have no FP8 scores, results have the bits of exact ones."""
    many = MANY if HAS_FP8_SCORES else (1, 70, 130)
    sizes = (136, 192, 512) if HAS_FP8_SCORES else (64, 128, 512)
    problems = [dense(rng, *FEW, size=128), *(dense(rng, *many, size=size) for size in sizes)]
    problems.append(cases.with_values(rng, dense(rng, *MANY, size=192), 128))
    for problem in problems:
        tensors = on_device(with_scales(rng, problem, 1, 1))
        exact = octofold.attention(**tensors, compute="exact")
        assert_same_bits(octofold.attention(**tensors, compute="fp8"), exact)
