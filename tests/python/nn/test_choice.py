"""Conditions on which a layer computes in FP8."""

import copy
import dataclasses

import octofold
import pytest
import torch
from octofold.nn.recipes import choice, kernels

from tests.python.judge import assert_same
from tests.python.nn.layer_support import MODULES, every, inputs_of

nn = octofold.nn
GPU = torch.device("cuda", 0)


@pytest.fixture
def measured(monkeypatch):
    """A GPU of which something is known."""
    monkeypatch.setattr(choice, "_gpu_name_once", lambda index: f"GPU {index}")
    by_size = choice.Threshold(size=512, multiplications=1e9)
    by_work = choice.Threshold(size=1, multiplications=1e9)
    table = {"GPU 0": {"blockwise": by_size, "tensorwise": by_work}}
    monkeypatch.setattr(choice, "MEASURED", table)


@pytest.mark.usefixtures("measured")
def test_thresholds():
    def wins(tokens, in_features, out_features, recipe="blockwise", device=GPU):
        recipe = nn.recipes.NAMED[recipe]
        return nn.fp8_wins(tokens, in_features, out_features, recipe, device)

    assert wins(1536, 1536, 1536)  # 1 / (3 / 1536) = 512
    assert not wins(1535, 1536, 1536)
    assert wins(520, 1 << 20, 1 << 20)
    assert not wins(511, 1 << 20, 1 << 20)
    assert wins(1000, 1000, 1000, "tensorwise")
    assert not wins(999, 1000, 1000, "tensorwise")
    assert wins(1, 1, 1, "rowwise")
    assert wins(1, 1, 1, device=torch.device("cuda", 1))
    assert wins(1, 1, 1, device=torch.device("cpu"))
    assert wins(0, 1536, 1536)


def test_what_was_measured(monkeypatch):
    """Ratios of docs/notes/layers.md, of one H200."""
    monkeypatch.setattr(choice, "_gpu_name_once", lambda index: ("NVIDIA H200", "another")[index])
    blockwise = nn.recipes.blockwise
    for tokens, features, faster in ((8192, 1024, 0.85), (4096, 2048, 1.06), (8192, 4096, 1.41)):
        assert nn.fp8_wins(tokens, features, features, blockwise, GPU) == (faster > 1)
    assert not nn.fp8_wins(4096, 2048, 2048, nn.recipes.rowwise, GPU)
    assert nn.fp8_wins(8192, 1024, 1024, nn.recipes.rowwise_with_gw_hp, GPU)  # not measured
    assert nn.fp8_wins(1, 1, 1, blockwise, torch.device("cuda", 1))


@pytest.mark.parametrize(("name", "has"), [("7.5", False), ("8.0", True), ("10.0", True)])
def test_bfloat16_is_what_the_matrix_says(name, has, monkeypatch):
    matrix = octofold.capabilities()
    targets = tuple(
        dataclasses.replace(target, gpus=(7,) if target.name == name else ())
        for target in matrix.targets
    )
    here = dataclasses.replace(matrix, targets=targets)
    monkeypatch.setattr(kernels, "capabilities", lambda: here)
    kernels._has_bfloat16_once.cache_clear()
    assert kernels.has_bfloat16(torch.device("cuda", 7)) is has
    assert kernels.has_bfloat16(torch.device("cuda", 6)) is False  # is none of them
    assert kernels.has_bfloat16(torch.device("cpu"))
    kernels._has_bfloat16_once.cache_clear()


@pytest.fixture
def losing(monkeypatch):
    from octofold.nn.layers import fused_components, linear

    for module in (linear, fused_components):
        monkeypatch.setattr(module, "fp8_wins", lambda *arguments: False)


@pytest.mark.usefixtures("losing")
def test_plain_product_where_fp8_loses(casts):
    messages = []
    octofold.set_log_handler(lambda *message: messages.append(message))
    try:
        layer = nn.Linear(301, 200, dtype=torch.float32)
        x = torch.randn(5, 301, dtype=torch.bfloat16)
        y = layer(x)
        layer(x)
        nn.Linear(301, 200)(x)
    finally:
        octofold.set_log_handler(None)
    weight, bias = layer.weight.bfloat16(), layer.bias.bfloat16()
    assert torch.equal(y, torch.nn.functional.linear(x, weight, bias))
    assert not casts
    ((level, message),) = messages  # once for layers of these sizes
    assert level == "warning"
    assert "301 -> 200 features, recipe blockwise: FP8 is slower" in message
    forced = nn.Linear(301, 200, force_fp8=True)
    forced(x)
    assert casts.count((200, 301)) == 1


@pytest.mark.usefixtures("losing")
def test_main_grad_of_a_plain_product(casts):
    layer = nn.Linear(300, 200, main_grad=True)
    x, dy = torch.randn(5, 300, requires_grad=True), torch.randn(5, 200)
    for _ in range(2):
        x.grad = None
        layer(x).backward(dy)
    assert torch.allclose(layer.weight.main_grad, 2 * dy.t() @ x.detach(), atol=1e-4)
    assert torch.allclose(x.grad, dy @ layer.weight.detach(), atol=1e-4)
    assert not casts


@pytest.mark.usefixtures("losing")
@every({name: make for name, make in MODULES.items() if "mlp" in name or "norm" in name})
def test_parts_are_run_where_fp8_loses(make, reads):
    module = make()
    inputs = inputs_of(module)
    (parts,) = nn.restore(torch.nn.ModuleList([copy.deepcopy(module)]))
    assert_same(module(*inputs), parts(*inputs))
    assert not reads
    for part in module.modules():
        part.force_fp8 = True
    module(*inputs)
    assert reads
