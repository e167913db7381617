"""Casts: their share of the rate at which a copy moves the least bytes ("speed"), those with an
activation or a norm beside what torch.compile makes of the same arithmetic.

    python bench/gpu/run.py casts RESULTS.jsonl [--sections plain fused] [--shape ROWS,COLUMNS ...]
        [--only TEXT ...] [--peers]

Least bytes: each matrix read once (by a plain cast twice where a scale is known only when all of x
has been read), codes and other matrices written once; scales, statistics and vectors are not
counted. Results are compared with torch's where it has the same arithmetic; of the others all has
to be finite.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import octofold
import torch
from common.measure import Build, beside_copy, keeping
from common.operands import DTYPES, normal, sets_of
from common.run import add_choices, add_only, sizes, text_of
from octofold.ops import Activated, ActivationGradient, Normed, cast
from octofold_tool.gpu.measuring import Implementation, relative_error

ROUNDS, SECONDS = 9, 500
SHAPES = {"plain": [(8192, 8192)], "fused": [(8192, 7168), (16384, 4096)]}
RULES = ("deepgemm", "vllm-per-token")  # one that multiplies, one that divides
ERROR_LIMIT = 0.05
TARGETS = ("rows", "both")
LAYOUTS = ("halves", "interleaved")


@dataclass(frozen=True)
class Case:
    name: str
    widths: tuple[int, ...]
    """The number of columns of each input."""
    written: float
    """Codes and bytes of a row."""
    cast: Callable[..., Any]
    exact: Callable[..., torch.Tensor] | None = None
    """Computes the values that are cast, by torch."""
    peer: Callable[..., Any] | None = None
    """The function that torch compiles."""
    reads: int = 1
    """How often each input is read."""
    dtype: str = "bfloat16"


def plain(run, rows, cols):
    def case(name, reads, written, cast):
        return [
            Case(f"{dtype} {name}", (cols,), written * cols, cast, lambda x: x, None, reads, dtype)
            for dtype in ("bfloat16", "float32")
        ]

    for granularity in ("1x128", "128x128", "channel", "tensor"):
        reads = 1 if granularity in ("1x128", "128x128") else 2
        for name in (f"{granularity} {rule}" for rule in RULES):
            once = partial(octofold.quantize, format=name)
            yield from case(name, 1 if granularity == "channel" else reads, 1, once)
            yield from case(f"{name} transposed", reads, 1, partial(cast, transposed=name))
            yield from case(f"{name} both", reads, 2, partial(cast, rows=name, transposed=name))
    # A layer casts x to rows, and to the transpose for the weight gradient.
    both = partial(cast, rows="1x128 torchao", transposed="channel torchao")
    yield from case("1x128 torchao, channel transposed", 2, 2, both)


def reference_cast(values):
    """quantize() with 1x128 scales, as torch has it."""
    units = values.float().unflatten(-1, (-1, 128))
    scale = units.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (units / scale).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def reference_both(values):
    return *reference_cast(values), *reference_cast(values.t().contiguous())


REFERENCES = {"rows": reference_cast, "both": reference_both}
WRITTEN = {"rows": 1, "both": 2}


def wanted(targets):
    """Options of cast()."""
    return {"rows": "1x128"} | ({"transposed": "1x128"} if targets == "both" else {})


def cast_of(source, options):
    """A cast of what the source is made of: cast_of(Activated, options)(x)."""
    return lambda *inputs: cast(source(*inputs), **options)


def composed(cast, exact):
    return lambda *inputs: cast(exact(*inputs))


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return (torch.nn.functional.silu(gate.float()) * up.float()).bfloat16()


def swiglu_gradient(gradient, x):
    gate, up = (half.float() for half in x.chunk(2, -1))
    sigmoid = torch.sigmoid(gate)
    by_gate = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([by_gate, gradient * gate * sigmoid], -1).bfloat16()


def activations(run, rows, cols):
    for targets, layout in itertools.product(TARGETS, LAYOUTS):
        for name, widths, outputs, source, exact in (
            ("swiglu", (2 * cols,), 1, Activated, swiglu),
            ("swiglu gradient", (cols, 2 * cols), 2, ActivationGradient, swiglu_gradient),
        ):
            same = layout == "halves"
            yield Case(
                f"{name} {targets} {layout}",
                widths,
                outputs * WRITTEN[targets] * cols,
                cast_of(partial(source, layout=layout), wanted(targets)),
                exact if same else None,
                composed(REFERENCES[targets], exact) if same else None,
            )


def rms_norm(weight, x):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def residual_norm(weight, x, residual):
    return rms_norm(weight, x + residual)


def layer_norm(weight, bias, x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)


def norms(run, rows, cols):
    weight, bias = (normal(run, cols) for _ in "ab")
    rms = partial(Normed, weight=weight)
    for targets, reference in REFERENCES.items():
        written, options = WRITTEN[targets] * cols, wanted(targets)

        def with_residual(x, residual, options=options):
            return cast(rms(x, residual=residual), **options)

        def compiled(x, residual, reference=reference):
            return (total := x + residual), *reference(rms_norm(weight, total))

        exact = partial(rms_norm, weight)
        plain, peer = cast_of(rms, options), composed(reference, exact)
        yield Case(f"rms norm {targets}", (cols,), written, plain, exact, peer)
        exact = partial(residual_norm, weight)
        yield Case(
            f"residual rms norm {targets}",
            (cols, cols),
            written + 2 * cols,
            with_residual,
            exact,
            compiled,
        )
        exact = partial(layer_norm, weight, bias)
        layer = cast_of(partial(rms, bias=bias, kind="layer"), options)
        peer = composed(reference, exact)
        yield Case(f"layer norm {targets}", (cols,), written, layer, exact, peer)
    by_channel = cast_of(rms, {"rows": "channel"})
    yield Case("rms norm rows channel", (cols,), cols, by_channel, partial(rms_norm, weight))


def norm_gradients(run, rows, cols):
    """dx is written in BF16. Statistics of other rows are as good as any."""
    weight, bias = (normal(run, cols) for _ in "ab")
    rstd, mean = torch.ones(rows, device=run.device), torch.zeros(rows, device=run.device)

    def compiled(norm, *operands):
        """Torch compiles the norm as well: its backward is not to be had alone."""

        def gradients(dy, x):
            leaves = [leaf.detach().requires_grad_() for leaf in (*operands, x)]
            return torch.autograd.grad(norm(*leaves), leaves, dy)

        return gradients

    def rms(dy, x, residual=None):
        return octofold.ops.norm_gradient(dy, x, rstd, weight=weight, residual_gradient=residual)

    def layer(dy, x):
        return octofold.ops.norm_gradient(dy, x, rstd, mean, weight, bias, kind="layer")

    two = cols, cols
    yield Case("rms norm backward", two, 2 * cols, rms, peer=compiled(rms_norm, weight))
    yield Case("rms norm backward + residual", (*two, cols), 2 * cols, rms)
    peer = compiled(layer_norm, weight, bias)
    yield Case("layer norm backward", two, 2 * cols, layer, peer=peer)


FAMILIES = {"plain": (plain,), "fused": (activations, norms, norm_gradients)}


def cast_error(results, expected):
    """The largest error of the casts among the results, each of `expected` or of its transpose; NaN
    where a result is not finite. None: they are finite, 0."""
    errors, found = [0.0], results if isinstance(results, tuple) else (results,)
    for x, scale in itertools.pairwise((*found, None)):
        if isinstance(x, octofold.ScaledTensor):
            values = x.dequantize("float32")
        elif isinstance(x, torch.Tensor) and x.dtype == torch.float8_e4m3fn:  # torch's codes
            values = (x.float().unflatten(-1, (-1, 128)) * scale.unsqueeze(-1)).flatten(-2)
        else:
            is_wrong = isinstance(x, torch.Tensor) and not x.isfinite().all()
            errors.append(float("nan") if is_wrong else 0.0)
            continue
        if expected is None:
            errors.append(0.0 if values.isfinite().all() else float("nan"))
            continue
        likely = (side for side in (expected, expected.T) if side.shape == values.shape)
        errors.append(min(relative_error(values, side) for side in likely))
    return float(torch.tensor(errors).max())  # NaN if one is


def add_options(parser):
    add_only(parser)
    add_choices(parser, "--sections", list(FAMILIES))
    parser.add_argument("--shape", type=sizes, action="append", metavar="ROWS,COLUMNS")
    parser.add_argument("--peers", action="store_true")


def cases(run):
    """A shape, and a case of it."""
    for section in run.options.sections:
        for shape in run.options.shape or (SHAPES[section] if run.on_gpu else [(128, 256)]):
            for family in FAMILIES[section]:
                for case in family(run, *shape):
                    if any(text in case.name for text in run.options.only):
                        yield shape, case


def measure(run, of_shape):
    shape, case = of_shape
    rows, read = shape[0], shape[0] * sum(case.widths) * DTYPES[case.dtype].itemsize
    moved = round(case.reads * read + rows * case.written)

    def operands():
        return [normal(run, rows, width, dtype=case.dtype) for width in case.widths]

    inputs = sets_of(operands, read, run)

    def make(function):
        def error():
            return cast_error(function(*inputs[0]), case.exact and case.exact(*inputs[0]))

        return Implementation(keeping(function, inputs), error, ERROR_LIMIT)

    builds = [Build(case.name, partial(make, case.cast), True, moved)]
    if run.options.peers and case.peer is not None:
        peer = torch.compile(case.peer)
        builds.append(Build("torch.compile", partial(make, peer), False, moved))
    beside_copy(run, "cast", f"{text_of(shape)} {case.name}", moved, builds)
