"""Layers see the weights that an optimizer has written, however it writes them."""

import octofold.nn
import pytest

torch = pytest.importorskip("torch")

OPTIONS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_a_step_is_seen(kind, options):
    check(kind, options, lambda step: step)


@pytest.mark.parametrize("options", [OPTIONS["loop"], OPTIONS["fused"]], ids=["loop", "fused"])
def test_a_compiled_step_is_seen(options):
    check("AdamW", options, lambda step: torch.compile(step, backend="aot_eager"))


def check(kind, options, compiled):
    layer = octofold.nn.Linear(32, 16, bias=False)
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.5, **options)
    step = compiled(optimizer.step)
    x = torch.randn(8, 32)
    for _ in range(2):
        before = layer(x)
        before.sum().backward()
        step()
        after = layer(x)
        assert not torch.equal(after, before)
        assert torch.equal(after, octofold.linear(x, layer.weight))
        optimizer.zero_grad()
