"""accelerate needs no plug: a model that octofold.nn.convert() has converted goes through
prepare(), trains, accumulates gradients, and is saved and resumed, as one without FP8."""

import accelerate
import octofold
import pytest
import torch

from tests.integrations.support import data, model_of

RECIPES = [None, "blockwise", "rowwise"]


def trainer(recipe, seed=0, **options):
    """The objects that a script has: accelerator, and prepared model, optimizer and loader."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, **options)
    torch.manual_seed(seed)
    model = model_of(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(data(), batch_size=32)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def epoch(accelerator, model, optimizer, loader):
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("recipe", RECIPES[1:])
def test_loss_falls_as_without(recipe, precision):
    options = {"mixed_precision": precision, "gradient_accumulation_steps": 2}
    found = {}
    for name in (None, recipe):
        parts = trainer(name, **options)
        found[name] = [epoch(*parts) for _ in range(6)]
    assert isinstance(parts[1].first, octofold.nn.Linear)
    first, last = found[recipe][0], found[recipe][-1]
    assert last < 0.6 * first
    assert found[recipe] != found[None]
    assert abs(last - found[None][-1]) < 0.1 * first


def test_saved_and_resumed(tmp_path):
    parts = trainer("blockwise")
    epoch(*parts)
    parts[0].save_state(tmp_path)
    expected = [epoch(*parts) for _ in range(2)]
    again = trainer("blockwise", seed=1)
    again[0].load_state(tmp_path)
    assert [epoch(*again) for _ in range(2)] == expected
    states = (p[0].unwrap_model(p[1]).state_dict() for p in (parts, again))
    for one, other in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(one, other)
