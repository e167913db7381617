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


def casts(worker, rows, cols):
    ops = worker.octofold.ops
    normal = normals(worker)
    xs = sets_of(worker, partial(normal, rows, cols), 2 * rows * cols)
    both = {"rows": "1x128 torchao", "transposed": "1x128 torchao"}
    options = {
        "rows": {"rows": "1x128"},
        "128x128": {"rows": "128x128"},
        "channel": {"rows": "channel"},
        "both": both,
        "both, amax": {**both, "columns": "amax"},
    }

    def made(how):
        def error():
            return distance(worker, ops.cast(xs[0], **how).rows.dequantize(), xs[0].double())

        return [partial(ops.cast, x, **how) for x in xs], error, worker.timing.GRAPH

    return {name: made(how) for name, how in options.items()}


SECTIONS = {  # the function, its cases, and the largest relative error
    "products": (products, SHAPES, 5e-3),
    "host": (host, [HOST_SHAPE], 5e-3),
    "casts": (casts, [(4096, 7168), (300, 2048)], 0.05),
}
