"""FP8 layers on a GPU: the CPU's results, no synchronization, graphs over forward and backward,
what is kept, two GPUs, the host's time. Prints what it measured (pytest -s)."""

import copy
import gc
import statistics
import subprocess
import sys
import time
from pathlib import Path

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, ON_GPU, needs_gpu, skip_without, torch
from tests.python.nn.layer_support import NAMES, STATELESS, relative_error

skip_without("products")

nn = octofold.nn
TOKENS, IN, OUT = 520, 1024, 384


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype)


def model_of(recipe, dtype=torch.float32, **options):
    layers = torch.nn.Linear(IN, OUT), torch.nn.SiLU(), torch.nn.Linear(OUT, IN, bias=False)
    model = torch.nn.Sequential(*layers).to(DEVICE, dtype)
    return nn.convert(model, recipe, force_fp8=True, **options).model


def step(layer, x, dy):
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(dy)
    gradients = [
        p.grad.clone()
        for p in layer.parameters()
        if p.grad is not None and not hasattr(p, "main_grad")
    ]
    return [y.detach(), x.grad, *gradients]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", NAMES)
def test_computes_what_the_cpu_does(recipe, dtype):
    layer = nn.Linear(IN, OUT, device=DEVICE, dtype=dtype, recipe=recipe, force_fp8=True)
    x, dy = random(2, TOKENS, IN, dtype=dtype), random(2, TOKENS, OUT, dtype=dtype)
    reference = copy.deepcopy(layer).cpu()
    # Codes and scales are the CPU's; sums in another order, and those of y of all K at once.
    limit = 1e-3 if dtype == torch.float32 else 2**-8
    limits = [1e-2 if recipe != "blockwise" else limit, limit, limit, limit]
    for left, right, allowed in zip(
        step(layer, x, dy), step(reference, x.cpu(), dy.cpu()), limits, strict=True
    ):
        assert left.dtype == right.dtype == dtype
        assert relative_error(left.cpu(), right) < allowed


@pytest.mark.parametrize("recipe", NAMES)
def test_main_grad(recipe):
    model = model_of(recipe, torch.bfloat16)
    twin = copy.deepcopy(model)
    twin[0].main_grad = twin[2].main_grad = True
    x, dy = random(TOKENS, IN, dtype=torch.bfloat16), random(TOKENS, IN, dtype=torch.bfloat16)
    step(model, x, dy)
    step(twin, x, dy)
    for index in (0, 2):
        with pytest.raises(octofold.UnsupportedError, match=r"gradient is in weight\.main_grad"):
            twin[index].weight.grad.clone()
        assert relative_error(twin[index].weight.main_grad, model[index].weight.grad) < 2**-8


@needs_gpu
@pytest.mark.parametrize("recipe", NAMES)
def test_does_not_synchronize(recipe):
    model = model_of(recipe, torch.bfloat16, main_grad=True)
    x, dy = random(TOKENS, IN, dtype=torch.bfloat16), random(TOKENS, IN, dtype=torch.bfloat16)
    step(model, x, dy)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            step(model, x, dy)
            with torch.no_grad():
                model[0].weight.mul_(1.01)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("recipe", NAMES)
def test_graph_over_forward_and_backward(recipe):
    """Replayed with other data and other weights, which each replay casts anew."""
    model = model_of(recipe, torch.bfloat16)
    x = random(TOKENS, IN, dtype=torch.bfloat16).requires_grad_()
    dy = random(TOKENS, IN, dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            model(x).backward(dy)
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad()
    x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
        y.backward(dy)
    for _ in range(3):
        with torch.no_grad():
            x.copy_(random(TOKENS, IN))
            dy.copy_(random(TOKENS, IN))
            for parameter in model.parameters():
                parameter.mul_(1.25)
        twin = copy.deepcopy(model)  # histories of delayed scaling too
        graph.replay()
        actual = [y, x.grad, *[p.grad for p in model.parameters()]]
        for left, right in zip(actual, step(twin, x, dy), strict=True):
            if recipe == "rowwise_with_gw_hp":  # whose weight gradient is cuBLAS's
                assert relative_error(left, right) < 2**-8
            else:
                assert torch.equal(left, right)


@needs_gpu
def test_capture_leaves_no_casts_behind():
    """They lie in the graph's memory. Nor does a graph use what keep_casts() keeps, which goes as
    that is left."""
    layer = nn.Linear(IN, OUT, device=DEVICE, force_fp8=True).requires_grad_(False)
    x = random(TOKENS, IN)
    graph = torch.cuda.CUDAGraph()
    with nn.keep_casts(layer):
        expected = layer(x)
        with torch.cuda.graph(graph):
            y = layer(x)
        assert torch.equal(layer(x), expected)
    layer.weight.mul_(2)
    graph.replay()
    assert torch.equal(y, layer(x))
    assert not torch.equal(y, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
@pytest.mark.parametrize("recipe", NAMES)
def test_compiles_whole(recipe, backend):
    torch.compiler.reset()
    model = model_of(recipe)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend=backend)
    for _ in range(2):
        x, dy = random(TOKENS, IN), random(TOKENS, IN)
        for left, right in zip(step(compiled, x, dy), step(model, x, dy), strict=True):
            assert relative_error(left, right) < (1e-6 if backend == "aot_eager" else 0.03)


@needs_gpu
@pytest.mark.parametrize("recipe", STATELESS)
def test_bytes_kept_for_backward(recipe):
    """x transposed in FP8, or x itself, and the weight transposed in FP8."""
    tokens = 16384
    layer = nn.Linear(IN, OUT, bias=False, device=DEVICE, dtype=torch.bfloat16, recipe=recipe)
    layer.force_fp8 = True
    x = random(tokens, IN, dtype=torch.bfloat16).requires_grad_()
    layer(x)
    torch.cuda.synchronize()
    gc.collect()  # what earlier tests left is not to go meanwhile
    before = torch.cuda.memory_allocated()
    y = layer(x)
    kept = torch.cuda.memory_allocated() - before - y.numel() * y.itemsize
    print(f"{recipe}: {kept / (tokens * IN):.3f} bytes per element of x")
    expected = OUT * IN + (0 if recipe == "rowwise_with_gw_hp" else tokens * IN)
    assert expected <= kept < expected + 0.02 * tokens * IN


@pytest.mark.skipif(
    not ON_GPU or torch.cuda.device_count() < 2, reason="needs two GPUs, one for each process"
)
def test_two_gpus(tmp_path):
    worker = Path(__file__).parents[1] / "python" / "nn" / "distributed_worker.py"
    arguments = [tmp_path / "rendezvous", "cuda"]
    processes = [
        subprocess.Popen([sys.executable, worker, str(rank), *arguments]) for rank in (0, 1)
    ]
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0]


@needs_gpu
def test_host_time():
    """Held against torch's own layer, as hosts differ by a factor of three."""
    x = random(16, 128, dtype=torch.bfloat16).requires_grad_()
    dy = random(16, 128, dtype=torch.bfloat16)
    options = {"device": DEVICE, "dtype": torch.bfloat16}
    layers = {"torch": torch.nn.Linear(128, 128, **options)}
    layers |= {n: nn.Linear(128, 128, recipe=n, force_fp8=True, **options) for n in NAMES}
    for name, layer in layers.items():
        forward = microseconds(lambda layer=layer: layer(x))
        both = microseconds(lambda layer=layer: layer(x).backward(dy))
        print(f"{name}: {forward:.1f} µs forward, {both:.1f} µs forward and backward")
        if name == "torch":
            allowed = 12 * forward, 9 * both  # beside other tests
        if name == "blockwise":
            assert forward < allowed[0]
            assert both < allowed[1]


def microseconds(call, calls=200, rounds=15):
    """Median time of a call on the host; the GPU is waited for between rounds only."""
    call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)
