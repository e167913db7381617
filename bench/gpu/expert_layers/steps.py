"""The steps of a layer of Octofold, one by one: what each has of the whole."""

from functools import partial
from typing import Any

import octofold
import octofold.nn
from octofold import ScaledTensor
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
            flat = octofold.quantize(
                weight,
                octofold.Format(granularity="128x128", rule=self.recipe.profile),
            )
            blocks = flat.scale.reshape(len(weight), -1, flat.scale.shape[-1])
            made.append(ScaledTensor(flat.data, blocks, "128x128"))
        return made

    def inference(self) -> dict[str, Call]:
        """Of forward, where nothing is to be differentiated."""
        i, k, experts = self.inputs, self.layer.top_k, self.layer.experts
        x, routed = i.x.detach(), i.weights.detach()
        w13, w2 = self.weights()
        self.run("top_k", partial(octofold.top_k, i.logits, k, normalize=True))
        sort = partial(octofold.sort_by_expert, i.ids, experts)
        offsets, sources, positions = self.run("sort", sort)
        profile = {"profile": self.recipe.profile}
        gather = partial(octofold.quantize_gathered, x, sources, k, **profile)
        rows = self.run("gather + cast", gather)
        format = octofold.Format(rule=self.recipe.profile)
        groups = octofold.Rows(offsets)
        gated = partial(octofold.ops.gated_gemm, rows, w13, groups, format=format)
        h = self.run("first product + SwiGLU + cast", gated)
        y = self.run("second product", partial(octofold.grouped_gemm, h, w2, groups))
        self.run("combine", partial(octofold.combine, y, positions, routed))
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
        sort = partial(octofold.sort_by_expert, i.ids, experts)
        offsets, sources, positions = self.run("sort", sort)

        def both(rows: str, transposed: str, **others: Any) -> dict[str, Any]:
            options = {"granularity": rows, "targets": "both", "offsets": offsets}
            options |= {"transposed_granularity": transposed, "profile": recipe.profile}
            return options | others

        of_input = both(recipe.output.a, recipe.grad_weight.b)
        of_gradient = both(recipe.grad_input.a, recipe.grad_weight.a, dtype=recipe.gradient_dtype)
        if recipe.grad_input.a == recipe.grad_weight.a:
            of_gradient["transposed_granularity"] = None
        gather = partial(octofold.quantize_gathered, x, sources, k, **of_input)
        rows, x_transposed = self.run("gather + casts of x", gather)
        groups, depth = octofold.Rows(offsets), octofold.Depth(offsets)
        product = partial(octofold.grouped_gemm, rows, w13, groups)
        gate_up = self.run("first product", product)
        activate = partial(octofold.quantize_activation, gate_up, "swiglu", **of_input)
        h, h_transposed = self.run("SwiGLU + casts", activate)
        y = self.run("second product", partial(octofold.grouped_gemm, h, w2, groups))
        self.run("combine", partial(octofold.combine, y, positions, routed))
        self.run("gradient by weights", partial(octofold.combine_gradient, dy, y, positions))
        gather = partial(octofold.quantize_gathered, dy, sources, k, routed, **of_gradient)
        rows, transposed = self.run("gather + casts of dY", gather)
        bfloat16 = {"out_dtype": "bfloat16"}
        product = partial(octofold.grouped_gemm, transposed, h_transposed, depth, **bfloat16)
        self.run("gradient by w2", product)
        dh = self.run("gradient by h", partial(octofold.grouped_gemm, rows, w2_transposed, groups))
        activate = partial(
            octofold.quantize_activation_gradient, dh, gate_up, "swiglu", **of_gradient
        )
        rows, transposed = self.run("SwiGLU's gradient + casts", activate)
        product = partial(octofold.grouped_gemm, transposed, x_transposed, depth, **bfloat16)
        self.run("gradient by w13", product)
        dx = self.run(
            "gradient by rows of x", partial(octofold.grouped_gemm, rows, w13_transposed, groups)
        )
        self.run("sum of these", partial(octofold.combine, dx, positions))
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
