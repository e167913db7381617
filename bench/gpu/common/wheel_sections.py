"""The sections of compare_wheels.py, in the process of one build: what is timed, and its error.

A section takes the worker and a case. It returns, by name: calls of equal work with operands of
their own, a function that gives the relative error of the first, and the method.
"""

from functools import partial

LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
SHAPES = [(m, n, k) for m in (1, 64, 128, 1024, 4096) for n, k in LAYERS]
HOST_SHAPE = (64, 128, 512)  # done before the host has queued the next one
CHAINS = [(rows, width) for width in (2048, 4096, 7168) for rows in (1, 8, 64)]
CHAIN_LAYERS = 4


def operands(worker, shape):
    """The same numbers at the same places in each process: torch alone allocates. Where operands
    lie moves the time of a small product by up to 3 %."""
    m, n, k = shape
    torch, device = worker.torch, worker.device
    generator = torch.Generator(device).manual_seed(7)

    def scaled(rows, granularity, shape, strides):
        x = torch.randn(rows, k, generator=generator, device=device)
        scale = torch.empty_strided(shape, strides, device=device)
        scale.copy_(torch.rand(shape, generator=generator, device=device) + 0.5)
        return worker.octofold.ScaledTensor(x.to(torch.float8_e4m3fn), scale, granularity), x

    blocks = -(-k // 128)
    a, x = scaled(m, "1x128", (m, blocks), (1, -(-m // 4) * 4))
    b, w = scaled(n, "128x128", (-(-n // 128), blocks), (blocks, 1))
    return a, b, torch.empty(m, n, dtype=torch.bfloat16, device=device), x, w


def products(worker, m, n, k):
    count = worker.timing.set_count((m + n) * k + 2 * m * n) if worker.on_gpu else 2
    sets = [operands(worker, (m, n, k))[:3] for _ in range(max(2, count))]
    calls = [partial(worker.octofold.gemm, a, b, out=out) for a, b, out in sets]
    return {"gemm": (calls, partial(error_of, worker, *sets[0]), worker.timing.GRAPH)}


def error_of(worker, a, b, out):
    """Returns the error of some rows, against FP64."""
    expected = a.dequantize()[:64].double() @ b.dequantize().double().T
    return distance(worker.torch, out[:64], expected)


def host(worker, *shape):
    torch, octofold = worker.torch, worker.octofold
    a, b, out, x, w = operands(worker, shape)
    x, w = x.bfloat16(), w.bfloat16().T
    wide = torch.empty_like(out)

    def multiply(a_data, a_scale, b_data, b_scale):
        left = octofold.ScaledTensor(a_data, a_scale, "1x128")
        return octofold.gemm(left, octofold.ScaledTensor(b_data, b_scale, "128x128"))

    method = worker.timing.Method("host", rest=0.0, passes=200)
    named = {
        "octofold.gemm(out=)": partial(octofold.gemm, a, b, out=out),
        "torch.mm(out=)": partial(torch.mm, x, w, out=wide),
        "compiled octofold.gemm": partial(
            torch.compile(multiply), a.data, a.scale, b.data, b.scale
        ),
        "compiled torch.mm": partial(torch.compile(torch.mm), x, w),
    }
    named["octofold.quantize"] = partial(octofold.quantize, x)
    named["octofold.quantize(out=)"] = partial(octofold.quantize, x, out=octofold.quantize(x))
    error = partial(error_of, worker, a, b, out)
    return {
        name: ([call], error if "gemm" in name else lambda: 0.0, method)
        for name, call in named.items()
    }


def chains(worker, rows, width):
    torch, octofold = worker.torch, worker.octofold
    generator = torch.Generator(worker.device).manual_seed(3)

    def normal(*shape):
        kind = {"device": worker.device, "dtype": torch.bfloat16}
        return torch.randn(*shape, generator=generator, **kind)

    count = worker.timing.set_count(CHAIN_LAYERS * width * width) if worker.on_gpu else 1
    x = normal(rows, width)
    wide = [[normal(width, width) / width**0.5 for _ in range(CHAIN_LAYERS)] for _ in range(count)]
    weights = [[octofold.quantize(w, "128x128") for w in group] for group in wide]
    outs = [torch.empty_like(x) for _ in range(CHAIN_LAYERS)]
    codes, cast = octofold.quantize(x), octofold.quantize(x)

    def cast_and_product(value, weight, out):
        octofold.quantize(value, out=cast)
        return octofold.gemm(cast, weight, out=out)

    layers = {
        "cast, gemm": (cast_and_product, weights),
        "gemm": (lambda _, weight, out: octofold.gemm(codes, weight, out=out), weights),
        "BF16": (lambda value, weight, out: torch.mm(value, weight.t(), out=out), wide),
    }
    if rows <= 8:
        layers["gemm of an array"] = (
            lambda value, weight, _: octofold.gemm(value, weight),
            weights,
        )

    def run(layer, group):
        value = x
        for weight, out in zip(group, outs, strict=True):
            value = layer(value, weight, out)
        return value

    expected = run(layers["BF16"][0], wide[0]).clone()

    def error(name, layer, groups):
        for out in outs:
            out.fill_(torch.nan)
        result = run(layer, groups[0]).double()
        if name == "gemm":  # of the same codes in each layer
            return 0.0
        return float(torch.linalg.norm(result - expected) / torch.linalg.norm(expected.double()))

    return {
        name: (
            [partial(run, layer, group) for group in groups],
            partial(error, name, layer, groups),
            worker.timing.GRAPH,
        )
        for name, (layer, groups) in layers.items()
    }


def groups(worker, kind, count, rows, n, k):
    """Products of `count` groups, whose sizes grow up to 2·rows."""
    torch, octofold, device = worker.torch, worker.octofold, worker.device
    normal = normals(worker)
    sizes = torch.linspace(0, 2 * rows, count + 1)[1:].round().int()
    offsets = torch.cat((torch.zeros(1), sizes.cumsum(0))).int().to(device)
    total, counts = int(sizes.sum()), sizes.to(device)
    ends = offsets.tolist()

    def operands():
        if kind == "depth":
            cast = partial(octofold.ops.cast, transposed="1x128", offsets=offsets)
            return [cast(normal(total, width)).transposed for width in (n, k)]
        room = (count, 2 * rows) if kind == "masked" else (total,)
        weights = normal(count, 2 * n if kind == "gated" else n, k) / k**0.5
        weights = octofold.quantize(weights, "128x128", matrices=count)
        return octofold.quantize(normal(*room, k)), weights

    def call(a, b):
        if kind == "gated":
            return octofold.ops.gated_gemm(a, b, octofold.Rows(offsets))
        of = {"rows": octofold.Rows, "masked": octofold.Masked, "depth": octofold.Depth}[kind]
        return octofold.grouped_gemm(a, b, of(counts if kind == "masked" else offsets))

    bytes_of_set = (total + count * n) * k if kind != "depth" else total * (n + k)
    sets = [operands() for _ in range(sets_for(worker, bytes_of_set))]

    def part(a, b, group):
        """A group's operands in FP64."""
        begin, end = ends[group], ends[group + 1]
        if kind == "depth":
            first = 128 * (begin // 128 + group)
            return (x.dequantize()[:, first : first + end - begin].double() for x in (a, b))
        rows_of = a.dequantize()
        rows_of = rows_of[group, : end - begin] if kind == "masked" else rows_of[begin:end]
        return rows_of.double(), b.dequantize()[group].double()

    def error():
        """Returns the error of the last group."""
        out, group = call(*sets[0]), count - 1
        a, b = part(*sets[0], group)
        expected = a @ b.T
        if kind == "gated":
            gate, up = expected.chunk(2, -1)
            return distance(
                torch, out.dequantize()[ends[group] :], torch.nn.functional.silu(gate) * up
            )
        if kind == "rows":
            return distance(torch, out[ends[group] :], expected)
        return distance(torch, out[group][: len(expected)], expected)

    return {kind: ([partial(call, *s) for s in sets], error, worker.timing.GRAPH)}


def casts(worker, rows, cols):
    torch, ops = worker.torch, worker.octofold.ops
    normal = normals(worker)
    xs = [normal(rows, cols) for _ in range(sets_for(worker, 2 * rows * cols))]
    both = {"rows": "1x128 torchao", "transposed": "1x128 torchao"}
    half = torch.tensor([0, rows // 3, rows], dtype=torch.int32, device=worker.device)
    order = torch.randperm(rows, device=worker.device).int()
    silu, weight = torch.nn.functional.silu, normal(cols)

    def activated(x):
        gate, up = x.chunk(2, -1)
        return silu(gate.double()) * up

    def normed(x):
        x = x.double()
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

    plain = {
        "rows": {"rows": "1x128"},
        "128x128": {"rows": "128x128"},
        "channel": {"rows": "channel"},
        "both": both,
        "both, amax": {**both, "columns": "amax"},
        "both, groups": {**both, "offsets": half},
    }
    made = {name: (lambda x: x, lambda x: x, options) for name, options in plain.items()}
    made["swiglu"] = (ops.Activated, activated, {"rows": "1x128"})
    made["swiglu, both"] = (ops.Activated, activated, both)
    made["norm"] = (lambda x: ops.Normed(x, weight), normed, {"rows": "1x128"})
    made["gathered"] = (
        lambda x: ops.Gathered(x, order),
        lambda x: x[order.long()],
        {"rows": "1x128"},
    )

    def error(source, values, options):
        return distance(torch, ops.cast(source(xs[0]), **options).rows.dequantize(), values(xs[0]))

    return {
        name: (
            [partial(ops.cast, source(x), **options) for x in xs],
            partial(error, source, values, options),
            worker.timing.GRAPH,
        )
        for name, (source, values, options) in made.items()
    }


def weights(worker, m, n, k):
    """Products with FP8 weights and a 16-bit x, and the gradient."""
    torch, octofold = worker.torch, worker.octofold
    normal = normals(worker)
    count = sets_for(worker, n * k)
    sets = [(normal(m, k), octofold.quantize(normal(n, k), "128x128")) for _ in range(count)]

    def error(call, x, w, transposed):
        wide = w.dequantize().double()
        return distance(torch, call(x, w), x.double() @ (wide.T if transposed else wide))

    named = {"weight only": (octofold.gemm_weight_only, sets, True)}
    if m > 16:
        gradients = [(normal(m, n), w) for _, w in sets]
        named["gradient"] = (octofold.ops.gemm_weight_only_gradient, gradients, False)
    return {
        name: (
            [partial(call, *s) for s in of],
            partial(error, call, *of[0], transposed),
            worker.timing.GRAPH,
        )
        for name, (call, of, transposed) in named.items()
    }


def normals(worker):
    """Makes BF16 numbers, the same in each process."""
    torch, device = worker.torch, worker.device
    generator = torch.Generator(device).manual_seed(5)
    return lambda *shape: torch.randn(*shape, generator=generator, device=device).bfloat16()


def sets_for(worker, size):
    return max(2, worker.timing.set_count(size)) if worker.on_gpu else 2


def distance(torch, actual, expected):
    return float(
        torch.linalg.norm(actual.double() - expected) / torch.linalg.norm(expected.double())
    )


GROUPS = (
    ("rows", 8, 512, 4096, 7168),
    ("rows", 32, 256, 7168, 2048),
    ("rows", 64, 6, 2816, 2048),
    ("masked", 16, 64, 4096, 7168),
    ("depth", 8, 1024, 4096, 2048),
    ("gated", 1, 2048, 14336, 4096),
    ("gated", 32, 256, 2048, 7168),
)
SECTIONS = {  # the function, its cases, and the largest relative error
    "products": (products, SHAPES, 5e-3),
    "host": (host, [HOST_SHAPE], 5e-3),
    "chains": (chains, CHAINS, 0.12),  # four casts of each operand
    "groups": (groups, GROUPS, 0.05),  # a cast of the gated product's result
    "casts": (casts, [(4096, 7168), (300, 2048)], 0.05),
    "weights": (weights, [(m, 4096, 7168) for m in (1, 4, 16, 64, 1024)], 5e-3),
}
