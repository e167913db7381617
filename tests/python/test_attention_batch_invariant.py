"""A row of an attention has the same bits in any batch, with batch_invariant.

One sequence, whose keys and values are always the same, among others that are not: any of its
queries has the same bits wherever the sequence is, however long it is by then, and whichever
queries come with it, on the same side of the one border: up to 32 rows to a key head, or more.
"""

import itertools

import numpy as np
import octofold
import pytest

from tests.python import attention_cases as cases
from tests.python.devices import (
    cpu_only,
    device,
    gpu,
    gpu_only,
    has_bfloat16,
    is_hopper,
    on_gpu,
    on_gpus,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("each_device")

PAGE = 16


def on_real_gpu():
    return on_gpu() and gpu() == "cuda"


class Case:
    """The sequence in memory of a layout, and the rows that came first at each place."""

    def __init__(self, layout, heads, kv_heads, size, value_size, scales, options):
        self.layout, self.scales, self.options = layout, scales, options
        self.latent = value_size > 256
        self.keys = 7000 if on_real_gpu() else 300  # on a GPU several parts
        self.device, self.dtype = device(), torch.bfloat16 if has_bfloat16() else torch.half
        self.size, self.value_size, self.group = size, value_size, heads // kv_heads
        self.random = torch.Generator(self.device).manual_seed(7)
        self.q = self.normal(self.keys, heads, size).to(self.dtype)
        self.k = self.fp8(self.keys, kv_heads, size)
        self.v = (
            self.k[..., :value_size] if self.latent else self.fp8(self.keys, kv_heads, value_size)
        )
        blocks = -(-self.keys // (PAGE if layout == "paged" else 128))
        self.k_scale, self.v_scale = self.some_scales(blocks), self.some_scales(blocks)
        self.seen = {}

    def normal(self, *shape):
        return torch.randn(shape, generator=self.random, device=self.device)

    def fp8(self, *shape):
        return self.normal(*shape).to(torch.float8_e4m3fn)

    def some_scales(self, blocks):
        """Far apart, as those of neighbours seldom are."""
        shape = blocks, self.k.shape[1]
        powers = torch.randint(-9, 3, shape, generator=self.random, device=self.device)
        return torch.exp2(powers.float()) * (0.5 + torch.rand(shape, device=self.device))

    def rows(self, count, end, company, at, packed_queries=True):
        """Attends with the last `count` queries of the first `end` keys, in a batch with a sequence
        of so many queries and keys for each of `company`, at place `at` among them."""
        others = [*company]
        others.insert(at, (count, end))
        sequences = []
        for i, (queries, keys) in enumerate(others):
            if i == at:
                own = (self.q[end - count : end], self.k[:end], self.v[:end])
                sequences.append((*own, self.k_scale, self.v_scale))
                continue
            q, k = self.normal(queries, *self.q.shape[1:]), self.fp8(keys, *self.k.shape[1:])
            v = k[..., : self.value_size] if self.latent else self.fp8(keys, *self.v.shape[1:])
            blocks = -(-keys // (PAGE if self.layout == "paged" else 128))
            scales = self.some_scales(blocks), self.some_scales(blocks)
            sequences.append((q.to(self.dtype), k, v, *scales))
        arrays = getattr(self, self.layout)(sequences)
        if packed_queries:
            arrays["q"] = torch.cat([sequence[0] for sequence in sequences])
            arrays["query_offsets"] = offsets(queries for queries, _ in others)
        else:
            arrays["q"] = torch.stack([sequence[0] for sequence in sequences])
        if not self.scales:
            del arrays["k_scale"], arrays["v_scale"]
        out, logarithms = octofold.attention(
            **arrays, **self.options, batch_invariant=True, return_log_sum_exp=True
        )
        if not packed_queries:
            return out[at], logarithms[at].T
        first = sum(queries for queries, _ in others[:at])
        return out[first : first + count], logarithms[:, first : first + count].T

    def dense(self, sequences):
        most = max(len(k) for _, k, *_ in sequences) + 3

        def padded(side, rows, fill=0):
            shape = len(sequences), rows, *sequences[0][side].shape[1:]
            whole = torch.full(shape, fill, dtype=torch.float32, device=self.device)
            whole = whole.to(sequences[0][side].dtype)
            for own, sequence in zip(whole, sequences, strict=True):
                there = sequence[side][:rows]
                own.view(torch.uint8)[: len(there)] = there.view(torch.uint8)
            return whole

        k = padded(1, most, torch.nan)
        v = k[..., : self.value_size] if self.latent else padded(2, most, torch.nan)
        counts = torch.tensor([len(k) for _, k, *_ in sequences], dtype=torch.int32)
        blocks = -(-most // 128)
        return {
            "k": k,
            "v": v,
            "k_scale": padded(3, blocks, 1),
            "v_scale": padded(4, blocks, 1),
            "key_counts": counts.to(self.device),
        }

    def packed(self, sequences):
        k = torch.cat([k.view(torch.uint8) for _, k, *_ in sequences]).view(self.k.dtype)
        v = k[..., : self.value_size]
        if not self.latent:
            v = torch.cat([v.view(torch.uint8) for _, _, v, *_ in sequences]).view(self.v.dtype)
        key_offsets = offsets(len(k) for _, k, *_ in sequences)
        scales = [torch.ones(len(k) // 128 + len(sequences), k.shape[1]) for _ in range(2)]
        for i, (_, keys, _, *own) in enumerate(sequences):
            first, blocks = int(key_offsets[i]) // 128 + i, -(-len(keys) // 128)
            for scale, of_sequence in zip(scales, own, strict=True):
                scale[first : first + blocks] = of_sequence[:blocks].cpu()
        of_keys, of_values = (scale.to(self.device) for scale in scales)
        return {
            "k": k,
            "v": v,
            "k_scale": of_keys,
            "v_scale": of_values,
            "key_offsets": key_offsets,
        }

    def paged(self, sequences):
        each = [-(-len(k) // PAGE) for _, k, *_ in sequences]
        order = torch.randperm(sum(each) + 2)[: sum(each)]
        table = torch.full((len(each), max(each) + 1), -5, dtype=torch.int32)
        pages = [torch.zeros(sum(each) + 2, PAGE, *self.k.shape[1:-1], n) for n in self.sizes()]
        pages = [page.to(self.device).to(torch.float8_e4m3fn) for page in pages]
        scales = [torch.ones(sum(each) + 2, self.k.shape[1], device=self.device) for _ in range(2)]
        taken = iter(order.split(each))
        for row, count, sequence in zip(table, each, sequences, strict=True):
            own = next(taken)
            row[:count] = own
            for page, side in zip(pages, sequence[1:3], strict=False):
                padding = torch.full((count * PAGE - len(side), *side.shape[1:]), 0x7F)
                codes = side.contiguous().view(torch.uint8)
                whole = torch.cat([codes, padding.to(self.device, torch.uint8)])
                page.view(torch.uint8)[own.to(self.device)] = whole.view(
                    count, PAGE, *side.shape[1:]
                )
            for scale, side in zip(scales, sequence[3:], strict=True):
                scale[own.to(self.device)] = side[:count]
        counts = torch.tensor([len(k) for _, k, *_ in sequences], dtype=torch.int32)
        return {
            "k": pages[0],
            "v": pages[0][..., : self.value_size] if self.latent else pages[1],
            "k_scale": scales[0],
            "v_scale": scales[1],
            "key_counts": counts.to(self.device),
            "page_table": table.to(self.device),
        }

    def sizes(self):
        return [self.size] if self.latent else [self.size, self.value_size]

    def assert_same_bits(self, count, end, company=(), at=0, packed_queries=True):
        """Asserts the bits that this side of the border has had for these places before, if any."""
        out, logarithms = self.rows(count, end, company, at, packed_queries)
        whole = (part.reshape(count, -1).contiguous() for part in (out, logarithms))
        bits = torch.cat([part.view(torch.int16) for part in whole], dim=1)
        side = count * self.group <= 32
        if side not in self.seen:
            known = torch.zeros(self.keys, dtype=torch.bool, device=self.device)
            self.seen[side] = known, bits.new_zeros(self.keys, bits.shape[1])
        known, wanted = (of_all[end - count : end] for of_all in self.seen[side])
        differ = known & (wanted != bits).any(1)
        assert not differ.any(), (count, end, company, at, differ.nonzero().flatten().tolist())
        wanted.copy_(bits)
        known.fill_(True)


def offsets(counts):
    ends = [0, *itertools.accumulate(counts)]
    return torch.tensor(ends, dtype=torch.int32, device=device())


HEADS = {
    "of 72 and 40": (4, 4, 72, 40),
    "of 128": (8, 2, 128, 128),
    "of 64": (8, 8, 64, 64),
    "of 256": (4, 1, 256, 256),
    "of 192 and 128": (4, 2, 192, 128),
    "latent": (16, 1, 576, 512),
}
OPTIONS = {
    "causal": {"causal": True},
    "window": {"window": (155, 0)},
    "fp8": {"causal": True, "compute": "fp8"},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dense", "packed", "paged"])
@pytest.mark.parametrize("heads", ["of 72 and 40", *on_gpus(*list(HEADS)[1:])])
@pytest.mark.parametrize("scales", [True, *on_gpus(False)])
@pytest.mark.parametrize("options", OPTIONS)
def test_rows_do_not_depend_on_the_batch(layout, heads, scales, options):
    if on_real_gpu() and options == "fp8" and not is_hopper():
        pytest.skip("FP8 scores are Hopper's")
    case = Case(layout, *HEADS[heads], scales, OPTIONS[options])
    if options == "window":
        case.options = {"window": (case.keys // 2 + 5, 0)}
    few, keys = 32 // case.group, case.keys
    # Decoding: each place alone, then several in a step, then in batches.
    for place in (1, 2, keys // 2, keys - few, keys - 1):
        case.assert_same_bits(1, place + 1)
    for count in {1, 2, few}:
        case.assert_same_bits(count, keys)
        case.assert_same_bits(count, keys - few + count)
        for others in (1, 7, 63) if on_real_gpu() else (3,):
            company = [(count, 1 + 97 * i % (keys // 3)) for i in range(others)]
            for packed_queries in (True,) if layout == "packed" else (False, True):
                case.assert_same_bits(count, keys, company, others // 2, packed_queries)
    case.assert_same_bits(few, keys, [(few + 90, keys // 2 + 200), (1, 5)], 1)  # beside a prefill
    # Prefills: whole, in chunks that overlap, in batches.
    whole = keys // 4
    case.assert_same_bits(whole, keys)
    for count in (few + 1, 40, 64, 100, 129, 300):
        if count > whole:
            continue
        case.assert_same_bits(count, keys - whole + count)
        case.assert_same_bits(count, keys)
        case.assert_same_bits(count, keys - 7, [(1, 300), (few, 40), (count + 90, keys)], 2)
        if layout != "packed":
            company = [(count, keys - 77)] * 3
            case.assert_same_bits(count, keys, company, 1, packed_queries=False)


def test_a_window_beyond_the_place_of_a_query():
    """It has the same keys only at the end of them all."""
    case = Case("packed", 4, 2, 40, 40, False, {"window": (133, 5)})
    for count in (1, 2, 7, 8, 12, 16):
        case.assert_same_bits(count, case.keys)
        case.assert_same_bits(count, case.keys, [(7, 200), (33, 40)], count % 3)


@gpu_only
def test_without_it_rows_depend_on_the_batch():
    if not on_real_gpu():
        pytest.skip("the CPU's never do")
    case = Case("dense", 8, 2, 128, 128, False, {"causal": True})
    alone, many = (
        octofold.attention(
            case.q[None, -count:].contiguous(), case.k[None], case.v[None], causal=True
        )
        for count in (1, 300)
    )
    assert not torch.equal(alone[0, 0], many[0, -1])


@cpu_only
def test_the_switch_sizes_the_workspace(rng):
    """The switch does so as the argument does, also with `out`."""
    q = cases.halves(rng, (1, 2, 4, 40), "float16")
    k, v = (cases.codes(rng, (1, 1500, 2, 40), dtype) for dtype in ("e4m3", "e5m2"))
    expected = octofold.attention(q, k, v, batch_invariant=True)
    out = np.empty_like(expected)
    octofold.set_batch_invariant(True)
    try:
        np.testing.assert_array_equal(octofold.attention(q, k, v), expected)
        octofold.attention(q, k, v, out=out)
    finally:
        octofold.set_batch_invariant(False)
    np.testing.assert_array_equal(out, expected)
