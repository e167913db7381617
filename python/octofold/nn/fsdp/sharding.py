"""Models whose weights FSDP2 gathers in FP8."""

from typing import Final

from torch.nn import Module, Parameter

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..casting.weight_tensors import with_local
from ..layers.experts import Experts
from ..layers.linear import Linear, local_part
from .agreed_scale import agree_before_forward, forget_after_forward
from .sharded_weight import ShardedWeight, has_one_scale

_NAME: Final = "octofold.distributed.gather_in_fp8"


def require_travels(operation: str, recipe: Recipe) -> None:
    """A recipe in which the codes of a weight [out, in] serve both of its products."""
    output, grad_input = recipe.output, recipe.grad_input
    scales = {
        None if product is None else product.b.granularity for product in (output, grad_input)
    }
    if scales not in ({"tensor"}, {"128x128"}):
        expected = "one with squares of 128x128, or one scale, for the weight in 'output' and in "
        expected += "'grad_input', such as blockwise or tensorwise, as one set of codes travels"
        raise invalid_argument(operation, "recipe", expected, str(recipe))


def gather_in_fp8(model: Module, operation: str = _NAME) -> Module:
    """Let FSDP2 gather the weights of a model's FP8 layers as codes with their scales: half the
    bytes of bfloat16, and bit for bit the products that casting after the gather gives.

    model: changed in place, before fully_shard() and before the optimizer is made: its
        octofold.nn.Linear (those inside MLP and NormLinear too) and octofold.nn.Experts get other
        parameters, of the same names, numbers and state_dict(). Those that tensor parallelism has
        spread are sharded further. Recipes have to have squares of 128x128, or one scale, for the
        weight ("blockwise", "blockwise_two_level", "tensorwise", "delayed"): others multiply
        forward and backward with different codes. Experts from FP8 checkpoints, whose weights are
        buffers, are left as they are.

    Each rank casts its shard. So with squares a shard has to be of whole ones, a multiple of 128
    rows of a layer's weight, on each rank as many: an UnsupportedError in the first forward, on
    every rank, names the layer otherwise. Of experts' stacks a shard is whole experts. Scales of
    whole tensors are agreed on as the model's forward begins, by one all-reduce of a number for
    each layer. Layers whose weight came in FP8 always multiply in FP8.

    Returns the model.
    Raises InvalidArgumentError, with nothing changed: without such layers, for other recipes, and
    for weights that are sharded already.
    """
    if not isinstance(model, Module):
        raise invalid_argument(operation, "model", "a torch.nn.Module", type(model).__qualname__)
    found: list[tuple[Linear | Experts, str, str, Parameter]] = []
    for place, module in model.named_modules():
        if not isinstance(module, (Linear, Experts)):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() < 2 or name.endswith("bias"):
                continue
            where = f"{place}.{name}" if place else name
            require_travels(operation, module.recipe)
            if module.is_sharded:
                expected = "weights that are not sharded yet: before fully_shard()"
                raise invalid_argument(operation, "model", expected, f"a DTensor, {where}")
            if not isinstance(local_part(parameter.detach()), ShardedWeight):
                found.append((module, name, where, parameter))
    if not found:
        expected = "layers of octofold.nn with weights in high precision"
        raise invalid_argument(operation, "model", expected, type(model).__qualname__)
    new: dict[int, Parameter] = {}  # a tied weight stays one
    agrees = False
    for module, name, where, parameter in found:
        if id(parameter) not in new:
            weight = parameter.detach()
            sharded = ShardedWeight(local_part(weight), where, module.recipe)
            agrees = agrees or has_one_scale(sharded)
            requires_grad = parameter.requires_grad
            new[id(parameter)] = Parameter(with_local(weight, sharded), requires_grad)
        module.register_parameter(name, new[id(parameter)])
    if agrees:
        model.register_forward_pre_hook(agree_before_forward)
        model.register_forward_hook(forget_after_forward, always_call=True)
    return model
