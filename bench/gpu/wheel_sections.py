"""The sections of compare_wheels.py, in the process of one build: what is timed, and its error.

A section takes the worker and a case. It returns, by name: calls of equal work with operands of
their own, a function that gives the relative error of the first, and the method.
"""

from functools import partial

LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
SHAPES = [(m, n, k) for m in (1, 64, 128, 1024, 4096) for n, k in LAYERS]
HOST_SHAPE = (64, 128, 512)  # done before the host has queued the next one


def normals(worker):
    """Makes BF16 numbers, the same in each process. Torch alone allocates: where operands lie moves
    the time of a small product by up to 3 %."""
    torch, device = worker.torch, worker.device
    generator = torch.Generator(device).manual_seed(5)
    return lambda *shape: torch.randn(*shape, generator=generator, device=device).bfloat16()


def sets_of(worker, make, size):
    """As many operands as no cache holds."""
    count = max(2, worker.timing.set_count(size)) if worker.on_gpu else 2
    return [make() for _ in range(count)]


def distance(worker, actual, expected):
    norm = worker.torch.linalg.norm
    return float(norm(actual.double() - expected) / norm(expected.double()))


def product_error(worker, a, b, out):
    """Returns the error of some rows, against FP64."""
    expected = a.dequantize()[:64].double() @ b.dequantize().double().T
    return distance(worker, out[:64], expected)


def operands(worker, m, n, k):
    normal, quantize = normals(worker), worker.octofold.quantize
    out = worker.torch.empty(m, n, dtype=worker.torch.bfloat16, device=worker.device)
    return lambda: (quantize(normal(m, k)), quantize(normal(n, k), "128x128"), out.clone())


def products(worker, m, n, k):
    sets = sets_of(worker, operands(worker, m, n, k), (m + n) * k + 2 * m * n)
    calls = [partial(worker.octofold.gemm, a, b, out=out) for a, b, out in sets]
    return {"gemm": (calls, partial(product_error, worker, *sets[0]), worker.timing.GRAPH)}


def host(worker, m, n, k):
    torch, octofold = worker.torch, worker.octofold
    a, b, out = operands(worker, m, n, k)()
    x, w = a.dequantize("bfloat16"), b.dequantize("bfloat16").T
    method = worker.timing.Method("host", rest=0.0, passes=200)
    named = {
        "octofold.gemm(out=)": partial(octofold.gemm, a, b, out=out),
        "torch.mm(out=)": partial(torch.mm, x, w, out=torch.empty_like(out)),
        "octofold.quantize": partial(octofold.quantize, x),
        "octofold.quantize(out=)": partial(octofold.quantize, x, out=octofold.quantize(x)),
    }
    error = partial(product_error, worker, a, b, out)
    return {name: ([call], error, method) for name, call in named.items()}


def groups(worker, kind, count, rows, n, k):
    """Products of `count` groups of `rows` each."""
    torch, octofold = worker.torch, worker.octofold
    normal, depth = normals(worker), kind == "depth"
    bounds = torch.arange(count + 1, dtype=torch.int32, device=worker.device) * rows
    of_groups = (octofold.Depth if depth else octofold.Rows)(bounds)

    def make():
        if depth:
            cast = partial(octofold.ops.cast, transposed="1x128", offsets=bounds)
            return [cast(normal(count * rows, width)).transposed for width in (n, k)]
        weights = normal(count, 2 * n if kind == "gated" else n, k) / k**0.5
        weights = octofold.quantize(weights, "128x128", matrices=count)
        return octofold.quantize(normal(count * rows, k)), weights

    function = octofold.ops.gated_gemm if kind == "gated" else octofold.grouped_gemm
    size = count * (rows * (n + k) if depth else (rows + n) * k)
    sets = sets_of(worker, make, size)

    def error():
        """Returns the error of the first group."""
        (a, b), out = (x.dequantize() for x in sets[0]), function(*sets[0], of_groups)
        if depth:
            return distance(worker, out[0], a[:, :rows].double() @ b[:, :rows].double().T)
        expected = a[:rows].double() @ b[0].double().T
        if kind == "gated":
            gate, up = expected.chunk(2, -1)
            out, expected = out.dequantize(), torch.nn.functional.silu(gate) * up
        return distance(worker, out[:rows], expected)

    calls = [partial(function, *each, of_groups) for each in sets]
    return {kind: (calls, error, worker.timing.GRAPH)}


def casts(worker, rows, cols):
    torch, ops = worker.torch, worker.octofold.ops
    normal = normals(worker)
    xs = sets_of(worker, partial(normal, rows, cols), 2 * rows * cols)
    both = {"rows": "1x128 torchao", "transposed": "1x128 torchao"}
    weight = normal(cols)

    def activated(x):
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate.double()) * up

    def normed(x):
        x = x.double()
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

    sources = {
        "": (lambda x: x, lambda x: x),
        "swiglu": (ops.Activated, activated),
        "norm": (lambda x: ops.Normed(x, weight), normed),
    }
    options = {
        "rows": {"rows": "1x128"},
        "128x128": {"rows": "128x128"},
        "channel": {"rows": "channel"},
        "both": both,
        "both, amax": {**both, "columns": "amax"},
        "swiglu rows": {"rows": "1x128"},
        "swiglu both": both,
        "norm rows": {"rows": "1x128"},
    }

    def made(name):
        source, values = sources[name.split()[0] if " " in name and "," not in name else ""]

        def error():
            cast = ops.cast(source(xs[0]), **options[name])
            return distance(worker, cast.rows.dequantize(), values(xs[0]))

        calls = [partial(ops.cast, source(x), **options[name]) for x in xs]
        return calls, error, worker.timing.GRAPH

    return {name: made(name) for name in options}


def weights(worker, m, n, k):
    """Products with FP8 weights and a 16-bit x."""
    octofold, normal = worker.octofold, normals(worker)
    sets = sets_of(
        worker, lambda: (normal(m, k), octofold.quantize(normal(n, k), "128x128")), n * k
    )

    def error():
        x, w = sets[0]
        expected = x.double() @ w.dequantize().double().T
        return distance(worker, octofold.gemm_weight_only(x, w), expected)

    calls = [partial(octofold.gemm_weight_only, *each) for each in sets]
    return {"weight only": (calls, error, worker.timing.GRAPH)}


GROUPS = (
    ("rows", 8, 512, 4096, 7168),
    ("rows", 32, 256, 7168, 2048),
    ("depth", 8, 1024, 4096, 2048),
    ("gated", 32, 256, 2048, 7168),
)
SECTIONS = {  # the function, its cases, and the largest relative error
    "products": (products, SHAPES, 5e-3),
    "host": (host, [HOST_SHAPE], 5e-3),
    "groups": (groups, GROUPS, 0.05),  # a cast of the gated product's result
    "casts": (casts, [(4096, 7168), (300, 2048)], 0.05),
    "weights": (weights, [(m, 4096, 7168) for m in (1, 4, 16, 64, 1024)], 5e-3),
}
