"""A row of an attention has the same bits in any batch, with batch_invariant.

One sequence, whose keys and values are always the same, among others that are not: any of its
queries has the same bits wherever the sequence is, however long it is by then, and whichever
queries come with it, on the same side of the one border: up to 32 rows to a key head, or more.
"""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, ON_GPU, needs_gpu, skip_without, torch
from tests.gpu.targets import does_what_hopper_does

skip_without("attention")

KEYS = 7000 if ON_GPU else 300  # on a GPU several parts
PAGE = 16
DTYPE = torch.bfloat16 if not ON_GPU or torch.cuda.get_device_capability() >= (8, 0) else torch.half


class Case:
    """The sequence in memory of a layout, and the rows that came first at each place."""

    def __init__(self, layout, heads, kv_heads, size, value_size, scales, options):
        self.layout, self.scales, self.options = layout, scales, options
        self.latent = value_size > 256
        self.size, self.value_size, self.group = size, value_size, heads // kv_heads
        self.random = torch.Generator(DEVICE).manual_seed(7)
        self.q = self.normal(KEYS, heads, size).to(DTYPE)
        self.k = self.fp8(KEYS, kv_heads, size)
        self.v = self.k[..., :value_size] if self.latent else self.fp8(KEYS, kv_heads, value_size)
        blocks = -(-KEYS // (PAGE if layout == "paged" else 128))
        self.k_scale, self.v_scale = self.some_scales(blocks), self.some_scales(blocks)
        self.seen = {}

    def normal(self, *shape):
        return torch.randn(shape, generator=self.random, device=DEVICE)

    def fp8(self, *shape):
        return self.normal(*shape).to(torch.float8_e4m3fn)

    def some_scales(self, blocks):
        """Far apart, as those of neighbours seldom are."""
        shape = blocks, self.k.shape[1]
        powers = torch.randint(-9, 3, shape, generator=self.random, device=DEVICE)
        return torch.exp2(powers.float()) * (0.5 + torch.rand(shape, device=DEVICE))

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
            sequences.append((q.to(DTYPE), k, v, *scales))
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
            whole = torch.full(shape, fill, dtype=torch.float32, device=DEVICE)
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
            "key_counts": counts.to(DEVICE),
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
        of_keys, of_values = (scale.to(DEVICE) for scale in scales)
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
        pages = [page.to(DEVICE).to(torch.float8_e4m3fn) for page in pages]
        scales = [torch.ones(sum(each) + 2, self.k.shape[1], device=DEVICE) for _ in range(2)]
        taken = iter(order.split(each))
        for row, count, sequence in zip(table, each, sequences, strict=True):
            own = next(taken)
            row[:count] = own
            for page, side in zip(pages, sequence[1:3], strict=False):
                padding = torch.full((count * PAGE - len(side), *side.shape[1:]), 0x7F)
                codes = side.contiguous().view(torch.uint8)
                whole = torch.cat([codes, padding.to(DEVICE, torch.uint8)])
                page.view(torch.uint8)[own.to(DEVICE)] = whole.view(count, PAGE, *side.shape[1:])
            for scale, side in zip(scales, sequence[3:], strict=True):
                scale[own.to(DEVICE)] = side[:count]
        counts = torch.tensor([len(k) for _, k, *_ in sequences], dtype=torch.int32)
        return {
            "k": pages[0],
            "v": pages[0][..., : self.value_size] if self.latent else pages[1],
            "k_scale": scales[0],
            "v_scale": scales[1],
            "key_counts": counts.to(DEVICE),
            "page_table": table.to(DEVICE),
        }

    def sizes(self):
        return [self.size] if self.latent else [self.size, self.value_size]

    def assert_same_bits(self, count, end, company=(), at=0, packed_queries=True):
        """Asserts the bits that this side of the border has had for these places before, if any."""
        is_few = count * self.group <= 32
        out, logarithms = self.rows(count, end, company, at, packed_queries)
        for i, place in enumerate(range(end - count, end)):
            bits = out[i].view(torch.int16), logarithms[i].contiguous().view(torch.int32)
            expected = self.seen.setdefault((is_few, place), bits)
            for actual, wanted in zip(bits, expected, strict=True):
                assert torch.equal(actual, wanted), (count, end, company, at, place)


def offsets(counts):
    ends = [0, *itertools.accumulate(counts)]
    return torch.tensor(ends, dtype=torch.int32, device=DEVICE)


HEADS = {
    "of 128": (8, 2, 128, 128),
    "of 64": (8, 8, 64, 64),
    "of 256": (4, 1, 256, 256),
    "of 192 and 128": (4, 2, 192, 128),
    "of 72 and 40": (4, 4, 72, 40),
    "latent": (16, 1, 576, 512),
}
OPTIONS = {"causal": {"causal": True}, "window": {"window": (KEYS // 2 + 5, 0)}}
if does_what_hopper_does(DEVICE.type):
    OPTIONS["fp8"] = {"causal": True, "compute": "fp8"}


@pytest.mark.parametrize("layout", ["dense", "packed", "paged"])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_rows_do_not_depend_on_the_batch(layout, heads, scales, options):
    case = Case(layout, *HEADS[heads], scales, OPTIONS[options])
    few = 32 // case.group
    # Decoding: each place alone, then several in a step, then in batches.
    for place in (1, 2, KEYS // 2, KEYS - few, KEYS - 1):
        case.assert_same_bits(1, place + 1)
    for count in {1, 2, few}:
        case.assert_same_bits(count, KEYS)
        case.assert_same_bits(count, KEYS - few + count)
        for others in (1, 7, 63) if ON_GPU else (3,):
            company = [(count, 1 + 97 * i % (KEYS // 3)) for i in range(others)]
            for packed_queries in (True,) if layout == "packed" else (False, True):
                case.assert_same_bits(count, KEYS, company, others // 2, packed_queries)
    case.assert_same_bits(few, KEYS, [(few + 90, KEYS // 2 + 200), (1, 5)], 1)  # beside a prefill
    # Prefills: whole, in chunks that overlap, in batches.
    whole = KEYS // 4
    case.assert_same_bits(whole, KEYS)
    for count in (few + 1, 40, 64, 100, 129, 300):
        if count > whole:
            continue
        case.assert_same_bits(count, KEYS - whole + count)
        case.assert_same_bits(count, KEYS)
        case.assert_same_bits(count, KEYS - 7, [(1, 300), (few, 40), (count + 90, KEYS)], 2)
        if layout != "packed":
            company = [(count, KEYS - 77)] * 3
            case.assert_same_bits(count, KEYS, company, 1, packed_queries=False)


@needs_gpu
def test_without_it_rows_depend_on_the_batch():
    case = Case("dense", 8, 2, 128, 128, False, {"causal": True})
    alone = octofold.attention(
        case.q[None, -1:].contiguous(), case.k[None], case.v[None], causal=True
    )
    many = octofold.attention(
        case.q[None, -300:].contiguous(), case.k[None], case.v[None], causal=True
    )
    assert not torch.equal(alone[0, 0], many[0, -1])
