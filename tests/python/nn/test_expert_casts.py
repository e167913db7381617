"""Casts of experts' weights: each expert's as quantize() casts it alone."""

import itertools

import octofold
import pytest

from tests.python.casting import GRANULARITIES, cast_side

torch = pytest.importorskip("torch")

from octofold.nn import recipes  # noqa: E402
from octofold.nn.casting.casts import cast_weight  # noqa: E402
from octofold.nn.casting.transposed import transposed_weight  # noqa: E402

RECIPE = recipes.blockwise


def assert_each_alone(stack, weight, format, transpose):
    for index, matrix in enumerate(weight):
        alone = cast_side(matrix.contiguous(), format, transpose)
        assert stack.granularity == format.granularity
        assert torch.equal(stack.data[index].view(torch.uint8), alone.data.view(torch.uint8))
        assert torch.equal(stack.scale[index].reshape(alone.scale.shape), alone.scale)


@pytest.mark.parametrize(
    ("rows", "transposed"), list(itertools.product((None, *GRANULARITIES), repeat=2))
)
def test_each_expert_is_cast_as_if_alone(rows, transposed, reads):
    formats = [
        None if unit is None else octofold.Format(granularity=unit, rule="torchao")
        for unit in (rows, transposed)
    ]
    recipe = recipes.Recipe(
        output=None if rows is None else recipes.Product("1x128 torchao", formats[0]),
        grad_input=None if transposed is None else recipes.Product("1x128", formats[1]),
        grad_weight=None,
    )
    for out_features, in_features in ((256, 128), (200, 136), (131, 77)):
        wide = torch.randn(3, out_features, in_features + 5).bfloat16()
        for weight in (wide[:, :, :in_features].contiguous(), wide[:, :, 5:]):
            reads.clear()
            casts = cast_weight(weight, recipe, True, True)
            wanted = [unit for unit in (rows, transposed) if unit is not None]
            together = rows == transposed or (rows == "1x128" and transposed != "tensor")
            assert len(reads) == (1 if together and len(wanted) == 2 else len(wanted))
            for cast, format, transpose in zip(casts, formats, (False, True), strict=True):
                assert (cast is None) == (format is None)
                if cast is not None:
                    assert_each_alone(cast, weight, format, transpose)


@pytest.mark.parametrize("recipe", [RECIPE, recipes.tensorwise], ids=["blockwise", "tensorwise"])
def test_transposes_of_fp8_weights_have_the_same_codes(recipe):
    weight = torch.randn(3, 200, 136)
    format = recipe.grad_input.b
    codes = octofold.quantize(weight, format, matrices=3)
    transposed = transposed_weight(codes, recipe)
    assert transposed.equals(cast_side(weight, format, transpose=True, matrices=3))
