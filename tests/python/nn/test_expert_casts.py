"""Casts of experts' weights: each expert's as quantize() casts it alone."""

import itertools

import octofold
import pytest
from reference import GRANULARITIES

torch = pytest.importorskip("torch")

from octofold.nn import expert_casts, recipes  # noqa: E402

RECIPE = recipes.blockwise


def assert_each_alone(stack, weight, granularity, transpose):
    options = {"granularity": granularity, "transpose": transpose}
    options |= {"power_of_two": RECIPE.power_of_two, "profile": RECIPE.profile}
    for index, matrix in enumerate(weight):
        alone = octofold.quantize(matrix.contiguous(), RECIPE.weight_dtype, **options)
        assert stack.granularity == granularity
        assert torch.equal(stack.data[index].view(torch.uint8), alone.data.view(torch.uint8))
        assert torch.equal(stack.scale[index].reshape(alone.scale.shape), alone.scale)


@pytest.mark.parametrize(
    ("rows", "transposed"), list(itertools.product((None, *GRANULARITIES), repeat=2))
)
def test_each_expert_is_cast_as_if_alone(rows, transposed, monkeypatch):
    calls = []
    for name in ("quantize", "quantize_both"):
        function = getattr(octofold, name)
        monkeypatch.setattr(
            expert_casts,
            name,
            lambda *given, function=function, **options: (
                calls.append(function) or function(*given, **options)
            ),
        )
    for out_features, in_features in ((256, 128), (200, 136), (131, 77)):
        wide = torch.randn(3, out_features, in_features + 5).bfloat16()
        for weight in (wide[:, :, :in_features].contiguous(), wide[:, :, 5:]):
            calls.clear()
            casts = expert_casts.cast_experts(weight, rows, transposed, RECIPE)
            wanted = [unit for unit in (rows, transposed) if unit is not None]
            together = rows == transposed or (rows == "1x128" and transposed != "tensor")
            assert len(calls) == (1 if together and len(wanted) == 2 else len(wanted))
            for cast, unit, transpose in zip(casts, (rows, transposed), (False, True), strict=True):
                assert (cast is None) == (unit is None)
                if cast is not None:
                    assert_each_alone(cast, weight, unit, transpose)


@pytest.mark.parametrize("recipe", [RECIPE, recipes.tensorwise], ids=["blockwise", "tensorwise"])
def test_transposes_of_fp8_weights_have_the_same_codes(recipe):
    weight = torch.randn(3, 200, 136)
    granularity = recipe.grad_input.b
    options = {"granularity": granularity, "profile": recipe.profile, "matrices": 3}
    transposed = expert_casts.transposed_experts(octofold.quantize(weight, **options), recipe)
    assert transposed.equals(octofold.quantize(weight, **options, transpose=True))
