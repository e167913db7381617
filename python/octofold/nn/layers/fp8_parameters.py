"""Layers of torch, or of anybody, whose parameter is an Fp8Weight."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..._core.errors import invalid_argument
from ..._core.formats import FormatLike
from ..._core.recipe import Product, Recipe, recipe_of
from ..._core.torch import FLOAT8
from ..autograd.fitting import local_part
from ..casting.fp8_weight import Fp8Weight
from .saving import wrap_writers

_INFERENCE: Final = "octofold.nn.inference_linear"
_WEIGHT_ONLY: Final = "octofold.nn.weight_only_linear"


def inference_linear(
    linear: torch.nn.Linear, recipe: Recipe | str = "blockwise", *, few_tokens: int = 0
) -> torch.nn.Linear:
    """Make a torch.nn.Linear with the weight of this one in FP8, frozen, and the same bias. It
    multiplies FP8 with FP8, and has a gradient by x: adapters (LoRA) can be trained over it.

    recipe: an octofold.nn.Recipe or the name of one. Its product `output` is used, and backward
        `grad_input`; what is cast is always cast by scales of its own, also where the recipe delays
        them. Results have the bits of octofold.nn.Linear's with this recipe.
    few_tokens: up to so many tokens of 16 bits are multiplied as they are, as weight_only_linear()
        does, where the weight's bytes take the time; 0: none are.

    A GPU without FP8 products multiplies all tokens as they are: 16 bits by the weight's codes,
    float32 by a copy of the weight. That is asked in each forward, where x is, and nothing of it is
    in state_dict(): a layer that was saved on one GPU runs on any other.

    For the gradient by x backward transposes the codes, with scales 128x128 and tensor to the same
    values; with others it casts the values again. On a GPU, with scales 1x128 and 128x128, the
    product itself casts an x of few tokens (octofold.gemm of an array).

    load_state_dict() of the layer takes an Fp8Weight, numbers, which it casts, and codes with
    scales by the names of FP8 checkpoints:

    | weight's scales | names                                               | as in              |
    |-----------------|-----------------------------------------------------|--------------------|
    | 128x128         | weight, weight_scale_inv [⌈out/128⌉, ⌈in/128⌉]      | DeepSeek-V3        |
    | channel         | weight, weight_scale [out] or [out, 1]              | compressed-tensors |
    | tensor          | weight, weight_scale [1] or []                      | vLLM               |
    | 1x128           | weight, weight_scale [out, ⌈in/128⌉]                |                    |

    Raises InvalidArgumentError, which names the argument.
    """
    recipe = recipe_of(_INFERENCE, recipe)
    format = output_of(_INFERENCE, recipe).b
    if few_tokens < 0:
        raise invalid_argument(_INFERENCE, "few_tokens", "a number of tokens", few_tokens)
    options = native_options(recipe, few_tokens)
    return with_weight(linear, Fp8Weight.cast(_weight_of(_INFERENCE, linear), format, **options))


def weight_only_linear(
    linear: torch.nn.Linear, format: FormatLike = "128x128", *, batch_invariant: bool = False
) -> torch.nn.Linear:
    """Make a torch.nn.Linear with the weight of this one in FP8, frozen, and the same bias. It
    multiplies x of 16 bits as it is, on GPUs with FP8 units or without, and has gradients by x and
    bias.

    format: how the weight is cast, an octofold.Format or its words.
    batch_invariant: a token's result, and its gradient, depend on that token alone, not on how many
        there are nor on its place (docs/batch-invariance.md). Not of float32, nor of
        bfloat16 where tensor cores have none.

    For many tokens a GPU multiplies by a copy of the weight in the dtype of x, made for the call,
    unless the layer is batch-invariant. So does one whose tensor cores have no bfloat16 (before
    compute capability 8.0) for bfloat16: float16 is quicker there. x of float32, outside of
    autocast, as peft.prepare_model_for_kbit_training() leaves a model, is multiplied by a float32
    copy.

    load_state_dict() takes what inference_linear() says.
    Raises InvalidArgumentError, which names the argument.
    """
    weight = _weight_of(_WEIGHT_ONLY, linear)
    options: dict[str, Any] = {"compute": "weight-only", "batch_invariant": batch_invariant}
    return with_weight(linear, Fp8Weight.cast(weight, format, **options))


def native_options(recipe: Recipe, few_tokens: int = 0) -> dict[str, Any]:
    """The options of an Fp8Weight that is multiplied as a recipe has it."""
    invariant = {"batch_invariant": recipe.batch_invariant}
    return {"compute": "native", "recipe": recipe, "few_tokens": few_tokens, **invariant}


def output_of(operation: str, recipe: Recipe) -> Product:
    """The recipe's product x · weightᵀ, which it has to have in FP8."""
    if recipe.output is None:
        expected = "one whose product 'output' is in FP8"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    return recipe.output


def with_weight(linear: torch.nn.Linear, weight: Fp8Weight) -> torch.nn.Linear:
    """A torch.nn.Linear beside this one, with the weight and the same bias."""
    with torch.device("meta"):
        made = torch.nn.Linear(linear.in_features, linear.out_features, False)
    made._parameters["bias"] = linear._parameters.get("bias")
    hold(made, weight)
    return made.train(linear.training)


def hold(module: Module, weight: Fp8Weight, name: str = "weight") -> None:
    """Make the weight the module's parameter of this name, a frozen one, which repr() shows and
    load_state_dict() also fills by codes and scales."""
    wrap_writers()
    weight = weight.aligned()
    parameter: Any = weight if isinstance(weight, Parameter) else Fp8Weight(weight)
    parameter.requires_grad = False
    module._parameters[name] = parameter
    module.extra_repr = _Description(module)  # type: ignore[method-assign]
    hooks: Any = module._load_state_dict_pre_hooks.values()
    if all(hook.hook is not _join for hook in hooks):
        module.register_load_state_dict_pre_hook(_join)  # type: ignore[no-untyped-call]


def held(module: Module, name: str = "weight") -> Fp8Weight | None:
    """The parameter of this name, if it is such a weight."""
    weight = module._parameters.get(name)
    return weight if isinstance(weight, Fp8Weight) else None


def weight_of(module: Module, name: str = "weight") -> Fp8Weight:
    """held() of a module that has one."""
    weight = held(module, name)
    assert weight is not None
    return weight


class _Description:
    """extra_repr() of a module. A method would be pickled by a name that the module does not
    have."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def __call__(self) -> str:
        parts = ((name, local_part(w)) for name, w in self._module._parameters.items())
        weights = (f"{name}={part}" for name, part in parts if isinstance(part, Fp8Weight))
        return ", ".join(filter(None, [type(self._module).extra_repr(self._module), *weights]))


def joined(weight: Fp8Weight, codes: Tensor, scale: Tensor, name: str = "weight") -> Fp8Weight:
    """A weight like this one with codes and scales of a file, which has scales of channels as
    [out, 1] too. Raises InvalidArgumentError, with the parameter's name, where they do not fit."""
    own = weight.scaled
    shapes = [[size for size in one.shape if size != 1] for one in (own.scale, scale)]
    if codes.dtype != own.data.dtype or not scale.is_floating_point() or shapes[0] != shapes[1]:
        expected, got = (
            f"{pair[0].dtype} with {pair[1].dtype} scales {list(pair[1].shape)}"
            for pair in ((own.data, own.scale), (codes, scale))
        )
        raise invalid_argument("octofold.nn.Fp8Weight", name, f"{expected}, its own", got)
    scale = scale.float().reshape(own.scale.shape)
    return weight.like(codes, scale).aligned()


def _join(module: Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
    """Before torch loads a state: one weight of codes and scales."""
    errors: list[str] = others[-1]
    for name, parameter in module._parameters.items():
        weight, codes = local_part(parameter), state.get(f"{prefix}{name}")
        if not isinstance(weight, Fp8Weight) or getattr(codes, "dtype", None) not in FLOAT8:
            continue
        scale = state.pop(f"{prefix}{weight.scale_name(name)}", None)
        try:
            if not isinstance(parameter, Fp8Weight):
                expected = "a DTensor of Fp8Weights (torch.distributed.checkpoint has them)"
                raise invalid_argument("octofold.nn.Fp8Weight", name, expected, "FP8 codes")
            if scale is None:
                expected = f"its scales beside it, '{weight.scale_name(name)}'"
                raise invalid_argument("octofold.nn.Fp8Weight", name, expected, "none")
            state[f"{prefix}{name}"] = joined(weight, state[f"{prefix}{name}"], scale, name)
        except ValueError as error:
            errors.append(f"'{prefix}{name}': {error}")
            del state[f"{prefix}{name}"]


def _weight_of(operation: str, linear: object) -> Tensor:
    if not isinstance(linear, torch.nn.Linear):
        got = f"{type(linear).__module__}.{type(linear).__qualname__}"
        raise invalid_argument(operation, "linear", "a torch.nn.Linear", got)
    return linear.weight
