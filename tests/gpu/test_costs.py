"""Calls cost kernels on a GPU, which torch's profiler sees, bytes that layers keep for backward,
and the host's time. Bytes and times are printed, too."""

import gc
import statistics
import time

import octofold
import pytest
from octofold.ops import Target, cast

from tests.gpu.gpu_support import DEVICE, needs, needs_gpu, normal, torch
from tests.gpu.layer_support import BF16, EXPERTS, SLOTS, random
from tests.gpu.layer_support import HIDDEN as IN
from tests.gpu.layer_support import INNER as HIDDEN
from tests.python.nn.expert_support import choices
from tests.python.nn.layer_support import NAMES

pytestmark = needs_gpu
nn = octofold.nn
TOKENS = 16384


def kernels_of(call):
    """Their names, those of Octofold."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    if not names:
        pytest.skip("the profiler saw no kernels")
    return [name for name in names if "octofold" in name]


def test_x_is_read_once_beside_a_given_amax(generator):
    """Beside rows of 1x128: three kernels, one of which is of tiles."""
    x = normal(generator, 256, 512, dtype="bfloat16")
    target = Target("channel torchao", amax=x.float().abs().amax(0))
    names = kernels_of(lambda: cast(x, rows="1x128 torchao", transposed=target))
    tiles, steps = (sum(kernel in name for name in names) for kernel in ("tile_cast", "scale_step"))
    assert (tiles, steps) == (1, 2)


@needs("products")
def test_a_layer_forward_takes_two_casts_and_the_product():
    layer = octofold.nn.Linear(512, 128, force_fp8=True, **BF16)
    x = torch.randn(64, 512, requires_grad=True, **BF16)
    assert len(kernels_of(lambda: layer(x))) == 3


@needs("grouped products")
def test_all_weights_are_cast_by_one_launch():
    linears = [octofold.nn.Linear(512, 512, force_fp8=True, **BF16) for _ in range(3)]
    model = torch.nn.Sequential(*linears, octofold.nn.Experts(512, 256, 8, **BF16))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, capturable=True)
    (name,) = kernels_of(octofold.nn.cast_after_step(optimizer, model).casts)
    assert "tile_batch_kernel" in name


def assert_kept(call, expected, slack):
    """The bytes that the call's graph keeps beside its first result, in its second call."""
    call()
    torch.cuda.synchronize()
    gc.collect()  # what earlier tests left is not to go meanwhile
    before = torch.cuda.memory_allocated()
    results = call()
    y = results[0] if isinstance(results, tuple) else results
    kept = torch.cuda.memory_allocated() - before - y.numel() * y.itemsize
    print(f"{kept / TOKENS:.0f} bytes per token, meant {expected / TOKENS:.0f}")
    assert expected <= kept < expected + slack


@needs("products")
@pytest.mark.parametrize("recipe", NAMES)
def test_bytes_that_a_linear_layer_keeps(recipe):
    """x transposed in FP8, or x itself, and the weight transposed in FP8."""
    layer = nn.Linear(IN, HIDDEN, bias=False, recipe=recipe, force_fp8=True, **BF16)
    x = random(TOKENS, IN).requires_grad_()
    expected = HIDDEN * IN + (0 if recipe == "rowwise_with_gw_hp" else TOKENS * IN)
    assert_kept(lambda: layer(x), expected, 0.02 * TOKENS * IN)


@needs("products")
@pytest.mark.parametrize("keep_fp8", [False, True])
@pytest.mark.parametrize("recipe", NAMES)
def test_bytes_that_an_mlp_keeps(recipe, keep_fp8):
    """With norm and residual: the sum, gate and up in BF16, or in FP8 with their scales; x and h
    transposed in FP8, and so the weights."""
    options = BF16 | {"force_fp8": True, "keep_fp8": keep_fp8}
    module = nn.MLP(IN, HIDDEN, norm="rms", recipe=recipe, **options)
    x, residual = (random(TOKENS, IN).requires_grad_() for _ in range(2))
    in_fp8 = 0 if recipe == "rowwise_with_gw_hp" else IN + HIDDEN
    gate_up = 2 * HIDDEN + 4 * (2 * HIDDEN // 128) if keep_fp8 else 2 * 2 * HIDDEN
    expected = TOKENS * (2 * IN + gate_up + in_fp8 + 4) + 3 * IN * HIDDEN
    assert_kept(lambda: module(x, residual), expected, 0.02 * expected)


@needs("grouped products")
def test_bytes_that_experts_keep():
    """In FP8 x's rows and the activation, transposed; in BF16 gate and up; and the weights
    transposed in FP8."""
    module = nn.Experts(IN, HIDDEN, EXPERTS, **BF16)
    ids = choices((TOKENS,), EXPERTS, SLOTS, gone=0, empty=0).to(DEVICE)
    weights = torch.rand((TOKENS, SLOTS), device=DEVICE).requires_grad_()
    x = random(TOKENS, IN).requires_grad_()
    rows = TOKENS * SLOTS
    expected = (rows + 128 * EXPERTS) * (IN + HIDDEN) + rows * 2 * 2 * HIDDEN
    expected += 2 * 4 * rows  # each row's slot, each slot's row
    expected += 3 * EXPERTS * IN * HIDDEN
    assert_kept(lambda: module(x, ids, weights), expected, 0.02 * expected)


@needs("products")
def test_host_time():
    """Held against torch's own layer, as hosts differ by a factor of three."""
    x, dy = random(16, 128).requires_grad_(), random(16, 128)
    layers = {"torch": torch.nn.Linear(128, 128, **BF16)}
    layers |= {n: nn.Linear(128, 128, recipe=n, force_fp8=True, **BF16) for n in NAMES}
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
