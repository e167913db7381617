"""The steps of a layer of Octofold, one by one: what each has of the whole."""

from functools import partial
from typing import Any

import octofold
import octofold.nn
from octofold import ops
from octofold._timing import Call
from octofold.nn.casting.casts import cast_weight
from octofold.nn.recipes import NAMED, Recipe

from .cases import Inputs, Layer


class Steps:
    """Runs a layer's operations one after another; each can be called again with what the ones
    before it gave. The recipe's products are all in FP8, with scales 1x128 · 128x128 of rows."""

    def __init__(self, layer: Layer, inputs: Inputs, recipe: str) -> None:
        self.layer, self.inputs = layer, inputs
        self.recipe: Recipe = NAMED[recipe]
        self.calls: dict[str, Call] = {}

    def run(self, name: str, call: Any) -> Any:
        self.calls[name] = call
        return call()

    def inference(self) -> dict[str, Call]:
        """Runs the steps of forward without gradients, and returns their calls."""
        i, k, experts = self.inputs, self.layer.top_k, self.layer.experts
        x, routed, recipe = i.x.detach(), i.weights.detach(), self.recipe
        assert recipe.output is not None
        format = recipe.output.a
        w13, w2 = (cast_weight(w, recipe, True, False)[0] for w in (i.w13, i.w2))
        self.run("top_k", partial(ops.top_k, i.logits, k, normalize=True))
        sort = partial(ops.sort_by_expert, i.ids, experts)
        offsets, sources, positions = self.run("sort", sort)
        source = ops.Gathered(x, sources, slots=k)
        rows = self.run("gather + cast", partial(ops.cast, source, rows=format)).rows
        groups = octofold.Rows(offsets)
        gated = partial(ops.gated_gemm, rows, w13, groups, format=format)
        h = self.run("first product + SwiGLU + cast", gated)
        y = self.run("second product", partial(octofold.grouped_gemm, h, w2, groups))
        self.run("combine", partial(ops.combine, y, positions, routed))
        return self.calls

    def training(self) -> dict[str, Call]:
        """Runs the steps of forward + backward, and returns their calls."""
        i, experts = self.inputs, self.layer.experts
        x, dy, routed = i.x.detach(), i.dy, i.weights.detach()
        recipe = self.recipe
        assert recipe.output is not None
        assert recipe.grad_input is not None
        assert recipe.grad_weight is not None
        w13, w13_transposed = cast_weight(i.w13, recipe, True, True)
        w2, w2_transposed = cast_weight(i.w2, recipe, True, True)
        sort = partial(ops.sort_by_expert, i.ids, experts)
        offsets, sources, positions = self.run("sort", sort)
        cast = partial(ops.cast, offsets=offsets)
        of_input = {"rows": recipe.output.a, "transposed": recipe.grad_weight.b}
        of_gradient = {"rows": recipe.grad_input.a, "transposed": recipe.grad_weight.a}
        gather = partial(cast, _gathered(x, sources, routed), **of_input)
        of_x = self.run("gather + casts of x", gather)
        groups, depth = octofold.Rows(offsets), octofold.Depth(offsets)
        product = partial(octofold.grouped_gemm, of_x.rows, w13, groups)
        gate_up = self.run("first product", product)
        h = self.run("SwiGLU + casts", partial(cast, ops.Activated(gate_up), **of_input))
        y = self.run("second product", partial(octofold.grouped_gemm, h.rows, w2, groups))
        self.run("combine", partial(ops.combine, y, positions, routed))
        gather = partial(cast, _gathered(dy, sources, routed), **of_gradient)
        of_y = self.run("gather + casts of dY", gather)
        by_weight = partial(octofold.grouped_gemm, groups=depth, out_dtype="bfloat16")
        self.run("gradient by w2", partial(by_weight, of_y.transposed, h.transposed))
        by_rows = partial(octofold.grouped_gemm, groups=groups)
        dh = self.run("gradient by h", partial(by_rows, of_y.rows, w2_transposed))
        self.run("gradient by weights", partial(ops.activation_dots, dh, gate_up, positions))
        source = ops.ActivationGradient(dh, gate_up)
        of_h = self.run("SwiGLU's gradient + casts", partial(cast, source, **of_gradient))
        self.run("gradient by w13", partial(by_weight, of_h.transposed, of_x.transposed))
        dx = self.run("gradient by rows of x", partial(by_rows, of_h.rows, w13_transposed))
        self.run("sum of these", partial(ops.combine, dx, positions, routed))
        return self.calls


def _gathered(tokens, sources, routed) -> ops.Gathered:
    """Returns rows as layers cast them: times the routing's weights in the transpose alone."""
    return ops.Gathered(tokens, sources, slots=routed.shape[-1], transposed_factors=routed)


def casts_of_weights(inputs: Inputs, recipe: str) -> dict[str, Call]:
    """Returns the casts that a step adds whose weights have changed: both casts of both weights, as
    the layer makes them."""
    chosen = NAMED[recipe]
    weights = {"w13": inputs.w13.detach(), "w2": inputs.w2.detach()}
    return {
        f"casts of {name}": partial(cast_weight, weight, chosen, True, True)
        for name, weight in weights.items()
    }
