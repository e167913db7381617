"""The steps of a layer of Octofold, one by one: what each has of the whole."""

from functools import partial
from typing import Any

import octofold
import octofold.nn
from octofold import Format, ScaledTensor, ops
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

    def weights(self, transposed: bool = False) -> list[ScaledTensor]:
        """Of both layers [experts, out, in], or the transposes."""
        made = []
        for weight in (self.inputs.w13.detach(), self.inputs.w2.detach()):
            weight = weight.transpose(1, 2).contiguous() if transposed else weight
            flat = octofold.quantize(weight, self.recipe.output.b)
            blocks = flat.scale.reshape(len(weight), -1, flat.scale.shape[-1])
            made.append(ScaledTensor(flat.data, blocks, "128x128"))
        return made

    def inference(self) -> dict[str, Call]:
        """Of forward, where nothing is to be differentiated."""
        i, k, experts = self.inputs, self.layer.top_k, self.layer.experts
        x, routed = i.x.detach(), i.weights.detach()
        w13, w2 = self.weights()
        self.run("top_k", partial(ops.top_k, i.logits, k, normalize=True))
        sort = partial(ops.sort_by_expert, i.ids, experts)
        offsets, sources, positions = self.run("sort", sort)
        format = self.recipe.output.a
        source = ops.Gathered(x, sources, slots=k)
        rows = self.run("gather + cast", partial(ops.cast, source, rows=format)).rows
        groups = octofold.Rows(offsets)
        gated = partial(ops.gated_gemm, rows, w13, groups, format=format)
        h = self.run("first product + SwiGLU + cast", gated)
        y = self.run("second product", partial(octofold.grouped_gemm, h, w2, groups))
        self.run("combine", partial(ops.combine, y, positions, routed))
        return self.calls

    def training(self) -> dict[str, Call]:
        """Of forward + backward."""
        i, k, experts = self.inputs, self.layer.top_k, self.layer.experts
        x, dy, routed = i.x.detach(), i.dy, i.weights.detach()
        recipe = self.recipe
        assert recipe.output is not None
        assert recipe.grad_input is not None
        assert recipe.grad_weight is not None
        w13, w2 = self.weights()
        w13_transposed, w2_transposed = self.weights(transposed=True)
        sort = partial(ops.sort_by_expert, i.ids, experts)
        offsets, sources, positions = self.run("sort", sort)

        def both(source: object, rows: Format, transposed: Format) -> Call:
            targets = {"rows": rows, "transposed": transposed, "offsets": offsets}
            return partial(ops.cast, source, **targets)

        of_input = recipe.output.a, recipe.grad_weight.b
        of_gradient = recipe.grad_input.a, recipe.grad_weight.a
        gather = both(ops.Gathered(x, sources, slots=k), *of_input)
        rows, x_transposed, *_ = self.run("gather + casts of x", gather)
        groups, depth = octofold.Rows(offsets), octofold.Depth(offsets)
        product = partial(octofold.grouped_gemm, rows, w13, groups)
        gate_up = self.run("first product", product)
        activate = both(ops.Activated(gate_up), *of_input)
        h, h_transposed, *_ = self.run("SwiGLU + casts", activate)
        y = self.run("second product", partial(octofold.grouped_gemm, h, w2, groups))
        self.run("combine", partial(ops.combine, y, positions, routed))
        self.run("gradient by weights", partial(ops.combine_gradient, dy, y, positions))
        gather = both(ops.Gathered(dy, sources, slots=k, factors=routed), *of_gradient)
        rows, transposed, *_ = self.run("gather + casts of dY", gather)
        bfloat16 = {"out_dtype": "bfloat16"}
        product = partial(octofold.grouped_gemm, transposed, h_transposed, depth, **bfloat16)
        self.run("gradient by w2", product)
        dh = self.run("gradient by h", partial(octofold.grouped_gemm, rows, w2_transposed, groups))
        activate = both(ops.ActivationGradient(dh, gate_up), *of_gradient)
        rows, transposed, *_ = self.run("SwiGLU's gradient + casts", activate)
        product = partial(octofold.grouped_gemm, transposed, x_transposed, depth, **bfloat16)
        self.run("gradient by w13", product)
        dx = self.run(
            "gradient by rows of x", partial(octofold.grouped_gemm, rows, w13_transposed, groups)
        )
        self.run("sum of these", partial(ops.combine, dx, positions))
        return self.calls


def casts_of_weights(inputs: Inputs, recipe: str) -> dict[str, Call]:
    """What a step adds whose weights have changed: both casts of both weights, as the layer makes
    them."""
    chosen = NAMED[recipe]
    weights = {"w13": inputs.w13.detach(), "w2": inputs.w2.detach()}
    return {
        f"casts of {name}": partial(cast_weight, weight, chosen, True, True)
        for name, weight in weights.items()
    }
