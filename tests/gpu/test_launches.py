"""Calls take as many kernels as they need, which torch's profiler sees."""

import octofold
import pytest
from octofold.ops import Target, cast

from tests.gpu.gpu_support import DEVICE, needs, needs_gpu, normal, torch

pytestmark = needs_gpu
BF16 = {"device": DEVICE, "dtype": torch.bfloat16}


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
