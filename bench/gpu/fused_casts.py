"""Fused casts: their share of the rate at which a copy moves the least bytes, beside what
torch.compile makes of the same arithmetic, measured in the same run:

    python tests/gpu/bench_fused_casts.py [--shape ROWS COLUMNS ...] [--only TEXT ...] [--peers]

Least bytes: each matrix read once, codes and other matrices written once; scales, statistics and
vectors are not counted, but scales are where an input is FP8. Times are of CUDA graphs that go
round operands that together are larger than the L2 cache; all take turns.
"""

import argparse
import itertools
import statistics

import octofold
import torch
from octofold_tool.gpu.timing import MIN_BYTES, graph_sampler, take_turns

ROUNDS = 9


def reference_cast(values):
    """quantize() with 1x128 scales, as torch has it."""
    units = values.float().unflatten(-1, (-1, 128))
    scale = units.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (units / scale).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def reference_both(values):
    return *reference_cast(values), *reference_cast(values.t().contiguous())


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return (torch.nn.functional.silu(gate.float()) * up.float()).bfloat16()


def swiglu_gradient(gradient, x):
    gate, up = (half.float() for half in x.chunk(2, -1))
    sigmoid = torch.sigmoid(gate)
    by_gate = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([by_gate, gradient * gate * sigmoid], -1).bfloat16()


def activations(rows, cols):
    """Name, widths of the inputs, codes written, the cast and torch's."""
    for targets, reference, written in (("rows", reference_cast, 1), ("both", reference_both, 2)):
        for layout in ("halves", "interleaved"):
            halves = layout == "halves"
            options = {"targets": targets, "layout": layout}
            yield (
                f"swiglu {targets} {layout}",
                (2 * cols,),
                written * rows * cols,
                lambda x, options=options: octofold.quantize_activation(x, **options),
                (lambda x, cast=reference: cast(swiglu(x))) if halves else None,
            )
            yield (
                f"swiglu gradient {targets} {layout}",
                (cols, 2 * cols),
                written * 2 * rows * cols,
                lambda g, x, options=options: octofold.quantize_activation_gradient(
                    g, x, **options
                ),
                (lambda g, x, cast=reference: cast(swiglu_gradient(g, x))) if halves else None,
            )


class InFp8(int):
    """The width of an input in FP8, with 1x128 scales."""


def activations_from_fp8(rows, cols):
    """x in FP8. What is written is counted with its scales too, 4 bytes for 128 codes."""
    for name, targets, written in (("rows", "rows", 1), ("both ways", "both", 2)):
        for layout in ("halves", "interleaved"):
            options = {"targets": targets, "layout": layout}
            yield (
                f"SwiGLU gradient {name} from FP8 {layout}",
                (cols, InFp8(2 * cols)),
                written * 2 * rows * cols * 33 // 32,
                lambda g, x, options=options: octofold.quantize_activation_gradient(
                    g, x, **options
                ),
                None,
            )
        yield (
            f"SwiGLU {name} from FP8",
            (InFp8(2 * cols),),
            written * rows * cols * 33 // 32,
            lambda x, targets=targets: octofold.quantize_activation(x, targets=targets),
            None,
        )


def rms_norm(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def layer_norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)


def norms(rows, cols):
    weight, bias = (torch.randn(cols, device="cuda").bfloat16() for _ in "ab")
    for targets, reference, written in (("rows", reference_cast, 1), ("both", reference_both, 2)):
        options = {"targets": targets}
        yield (
            f"rms norm {targets}",
            (cols,),
            written * rows * cols,
            lambda x, options=options: octofold.quantize_norm(x, weight, **options),
            lambda x, cast=reference: cast(rms_norm(x, weight)),
        )
        yield (
            f"residual rms norm {targets}",
            (cols, cols),
            (written + 2) * rows * cols,
            lambda x, r, options=options: octofold.quantize_norm(x, weight, residual=r, **options),
            lambda x, r, cast=reference: ((total := x + r), *cast(rms_norm(total, weight))),
        )
        yield (
            f"layer norm {targets}",
            (cols,),
            written * rows * cols,
            lambda x, options=options: octofold.quantize_norm(
                x, weight, bias, norm="layer", **options
            ),
            lambda x, cast=reference: cast(layer_norm(x, weight, bias)),
        )
    yield (
        "rms norm rows channel",
        (cols,),
        rows * cols,
        lambda x: octofold.quantize_norm(x, weight, granularity="channel"),
        None,
    )


def norm_backwards(rows, cols):
    """dx is written in BF16. Statistics of other rows are as good as any."""
    weight, bias = (torch.randn(cols, device="cuda").bfloat16() for _ in "ab")
    rstd = torch.ones(rows, device="cuda")
    mean = torch.zeros(rows, device="cuda")

    def compiled(norm, *operands):
        """What torch compiles is the norm too: its backward is not to be had alone."""

        def gradients(dy, x):
            leaves = [leaf.detach().requires_grad_() for leaf in (x, *operands)]
            return torch.autograd.grad(norm(*leaves), leaves, dy)

        return gradients

    yield (
        "rms norm backward",
        (cols, cols),
        2 * rows * cols,
        lambda dy, x: octofold.norm_backward(dy, x, rstd, weight=weight),
        compiled(rms_norm, weight),
    )
    yield (
        "rms norm backward + residual",
        (cols, cols, cols),
        2 * rows * cols,
        lambda dy, x, r: octofold.norm_backward(dy, x, rstd, weight=weight, residual_gradient=r),
        None,
    )
    yield (
        "layer norm backward",
        (cols, cols),
        2 * rows * cols,
        lambda dy, x: octofold.norm_backward(dy, x, rstd, mean, weight, bias, norm="layer"),
        compiled(layer_norm, weight, bias),
    )


def columns(rows, cols):
    """The cast of a gradient both ways, without and with what it works out of columns."""
    for transposed in (None, "channel"):
        name = "1x128" if transposed is None else f"1x128+{transposed}"
        for wanted in (None, "sums", "both"):
            with_sums = wanted == "sums" and transposed is None
            yield (
                f"cast both {name}" + (f" columns {wanted}" if wanted else ""),
                (cols,),
                2 * rows * cols,
                lambda x, wanted=wanted, other=transposed: octofold.quantize_with_columns(
                    x, wanted, "e5m2", transposed_granularity=other
                ),
                (lambda x: (*reference_both(x), x.float().sum(0))) if with_sums else None,
            )
    for wanted in (None, "sums"):
        yield (
            "swiglu gradient both" + (f" columns {wanted}" if wanted else ""),
            (cols, 2 * cols),
            4 * rows * cols,
            lambda g, x, wanted=wanted: octofold.quantize_activation_gradient(
                g, x, targets="both", columns=wanted
            ),
            None,
        )


FAMILIES = (activations, activations_from_fp8, norms, norm_backwards, columns)


def operand(rows, width):
    x = torch.randn(rows, width, device="cuda").bfloat16()
    return octofold.quantize(x) if isinstance(width, InFp8) else x


def bytes_of(rows, width):
    return rows * (width + 4 * -(-width // 128)) if isinstance(width, InFp8) else 2 * rows * width


def call_of(function, inputs, kept, index):
    """Keeps its result until its next call, so that no other one writes to the same memory."""

    def call():
        kept[index] = function(*inputs)

    return call


def copies(bytes_moved, count):
    pairs = [
        [torch.empty(bytes_moved // 2, dtype=torch.uint8, device="cuda").random_() for _ in "ab"]
        for _ in range(count)
    ]
    return [lambda pair=pair: pair[0].copy_(pair[1]) for pair in pairs]


def measure(rows, name, widths, written, cast, reference, with_peers):
    read = sum(bytes_of(rows, width) for width in widths)
    sets = max(2, -(-MIN_BYTES // read))
    inputs = [[operand(rows, width) for width in widths] for _ in range(sets)]
    functions = [cast]
    if with_peers and reference is not None:
        functions.append(torch.compile(reference))
    peers = [
        [call_of(function, arrays, kept, index) for index, arrays in enumerate(inputs)]
        for function, kept in ((function, {}) for function in functions)
    ]
    peers.append(copies(read + written, sets))
    for calls in peers:
        for call in calls:
            call()
    samples = take_turns([graph_sampler(calls) for calls in peers], ROUNDS)
    ours, *others, copy = (statistics.median(sample) for sample in samples)
    spread = (max(samples[0]) - min(samples[0])) / ours
    of_peers = "".join(f" {copy / seconds:7.1%}" for seconds in others)
    print(
        f"{name:<40} {ours * 1e6:8.1f} µs {spread:6.1%} {(read + written) / copy / 1e9:6.0f} GB/s"
        f" {copy / ours:7.1%}{of_peers}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", nargs=2, type=int, action="append")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    print(f"{'cast':<40} {'time':>11} {'spread':>6} {'copy':>11} {'share':>7} {'compiled':>7}")
    for rows, cols in arguments.shape or [(8192, 7168), (16384, 4096)]:
        print(f"{rows} x {cols}")
        for case in itertools.chain.from_iterable(family(rows, cols) for family in FAMILIES):
            if any(text in case[0] for text in arguments.only):
                measure(rows, *case, arguments.peers)


if __name__ == "__main__":
    main()
