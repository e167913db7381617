"""A layer in this process: one call of the library forward and one backward.

Where torch need not know of what is in it the calls are made at once, else (compilers, modes,
transforms, policies of checkpointing) by the ops layer_forward and layer_backward, which make the
same calls. A product that the recipe has in high precision is torch's, beside the call: the library
leaves it out.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from ..._core.errors import InvalidArgumentError, in_words_of
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import LIBRARY_TAKES_TENSORS, NAMES, increment_version
from ..._core.torch_ops import PLAIN_TYPES, torch_is_watching
from ..._ops.cast import Casts
from ..._ops.layer_ops import LayerOptions, layer_backward, layer_forward, text_of
from ..._ops.layer_passes import Beside, Passes, Wanted, fits, passes_of
from ..casting.casts import joined, walkable
from ..casting.fp8_weight import Fp8Weight
from .activated import activated, activated_gradient, as_it_waits, wide
from .fitting import require_fitting
from .functions import (
    Layout,
    differentiates,
    flatten,
    memory,
    refuse_in_backward,
    result_dtype,
    save_tensors,
    saved_tensors,
)
from .layer import Before, Chain, Layer, TransposedWeight, transposed_weights, wanted_of
from .normed import fitted, normed
from .products import addable, input_gradient

_NAMES: Final = {
    "a": "x",
    "b": "weight",
    "b.scale": "weight.scale",
    "up_weight": "gate_up_weight",
    "up_bias": "gate_up_bias",
    "operands.weight": "norm_weight",
    "operands.bias": "norm_bias",
}
_NAMES_OF_EXPERTS: Final = {
    "ids": "topk_ids",
    "up_weight": "w13",
    "up_bias": "b13",
    "down_weight": "w2",
    "down_bias": "b2",
}
"""The operations' names for what the library's messages name."""
_empty: Final = torch.empty


def run(before: Before, layers: tuple[Layer, ...], chain: Chain) -> tuple[Tensor, Tensor]:
    """The result of a layer of arguments that fit, [..., out], and what was normed. A transposed
    cast of a weight that is missing backward makes, of the weight as it is then."""
    x, residual = before[:2]
    dtype = result_dtype(x)
    compute = in_one_process if chain.sides is None else chain.sides.compute
    assert compute is not None
    if x.dim() == 1:
        of_row = before._replace(x=x[None], residual=None if residual is None else residual[None])
        y, total = compute(chain, of_row, layers, dtype)
        return y[0], total[0]
    rows = walkable(x)
    if rows is not x or residual is not None:
        before = before._replace(x=rows, residual=None if residual is None else walkable(residual))
    return compute(chain, before, layers, dtype)


def in_one_process(
    chain: Chain, before: Before, layers: tuple[Layer, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """run() of rows that casts can walk, with the dtype of the result."""
    name, recipe, norm, *_ = chain
    made = wanted = wanted_of(before, layers)
    if not fits(recipe, wanted):
        by_torch = recipe.grad_input is None, recipe.grad_weight is None
        if len(layers) == 2 or (norm is not None and wanted[0] and by_torch[0]):
            return _apart(chain, before, layers, dtype)
        made = wanted[0] and not by_torch[0], wanted[1] and not by_torch[1], wanted[2]
    parameters: list[Tensor | None] = []
    read = list(before)
    is_cast = False
    for weights, bias, casts, _ in layers:
        parameters += *weights, bias
        if casts is not None or Fp8Weight in [type(weight) for weight in weights]:
            is_cast = True
    if is_cast:
        layers = tuple(layer.with_casts(recipe, False) for layer in layers)
        read += [layer.bias for layer in layers]
    else:
        read += parameters
    norm_dtypes = _NO_DTYPES if norm is None else _dtypes_of(before, made)
    if torch_is_watching() or not LIBRARY_TAKES_TENSORS or not are_plain(read):
        call = _Call(chain, before, layers, dtype, wanted, made, norm_dtypes, None)
        return _by_ops(call, parameters)
    try:
        passes = _passes_of(chain, before, layers, dtype, made)
        call = _Call(chain, before, layers, dtype, wanted, made, norm_dtypes, passes)
        if True not in wanted:
            y, total, _ = _forward(call)
        else:
            results = _apply_at_once(call, *before, *parameters)
            y, total = (results, None) if before.residual is None else results
    except InvalidArgumentError as error:
        names = _NAMES if before.topk_ids is None else _NAMES_OF_EXPERTS
        raise in_words_of(name, error, names) from None
    return y, before.x if total is None else total


def _apart(
    chain: Chain, before: Before, layers: tuple[Layer, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Layers with a product in high precision between others: one call for each layer; and torch's
    norm before one whose input has its gradient from torch."""
    name, recipe, norm, activation, keep_fp8, *_ = chain
    if activation is not None:
        first = Chain(name, recipe, norm)
        gate_up, total = in_one_process(first, before, layers[:1], dtype)
        second = Chain(name, recipe, activation=activation, keep_fp8=keep_fp8)
        return in_one_process(second, Before(gate_up), layers[1:], dtype)[0], total
    x, residual, weight, bias, *_ = before
    assert norm is not None
    total = x if residual is None else x + residual
    rows = Before(normed(total, weight, bias, norm))
    return in_one_process(Chain(name, recipe), rows, layers, dtype)[0], total


class _Call(NamedTuple):
    """A call of a layer whose arguments fit."""

    chain: Chain
    before: Before
    layers: tuple[Layer, ...]
    """All with casts, or none."""
    dtype: torch.dtype
    """The dtype of the result."""
    wanted: Wanted
    made: Wanted
    """The gradients among those wanted that the library makes; torch makes the others."""
    norm_dtypes: tuple[torch.dtype | None, torch.dtype | None]
    """The dtypes of the gradients by the norm's operands; None: of none."""
    passes: Passes | None
    """None: the calls are the ops'."""

    def options(self) -> LayerOptions:
        """The layer, as the ops are told of it."""
        chain, layers, (kind, epsilon) = self.chain, self.layers, self.chain.norm or (None, 0.0)
        of_chain = text_of(chain.recipe), kind, epsilon, chain.activation, chain.keep_fp8
        biases = layers[0].bias is not None, layers[-1].bias is not None
        is_cast = layers[0].casts is not None
        wanted = "".join(["1" if each else "0" for each in self.made])
        types = NAMES[self.before.x.dtype], "" if chain.recipe.output is None else NAMES[self.dtype]
        return LayerOptions(*of_chain, *biases, chain.rows_dtype(), is_cast, wanted, *types)


def _forward(call: _Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y, x + residual, and what is kept for backward."""
    chain, before, layers, dtype, _, made, _, passes = call
    x, residual, norm_weight, norm_bias, shares, ids = before
    y = total = kept = None
    is_high = chain.recipe.output is None
    if not is_high or True in made:
        weights: list[Tensor | None] = []
        for layer in layers:
            weights += layer.operands(dtype)
        if chain.norm is not None:
            norm_weight, norm_bias = fitted(norm_weight, x), fitted(norm_bias, x)
        given = x, residual, norm_weight, norm_bias, ids, shares, *weights
        if passes is None:
            given += (None,) * (12 - len(given))
            y, total, kept, _ = layer_forward(given, tuple(call.options()))
        else:
            device = x.device
            if not is_high:
                y = _empty((*x.shape[:-1], passes.out_features), dtype=dtype, device=device)
            if residual is not None:
                total = _empty(x.shape, dtype=x.dtype, device=device)
            kept = memory(passes.kept, x)
            results = y, total, kept, memory(passes.forward_workspace, x)
            passes.run_forward(given, results, chain.activation, None)
    if is_high:
        (layer,) = layers
        bias = None if layer.bias is None else layer.bias.to(dtype)
        y = functional.linear(x.to(dtype), joined(layer.weights).to(dtype), bias)
    assert y is not None
    return y, total, kept


_NO_DTYPES: Final = (None, None)


def _dtypes_of(before: Before, made: Wanted) -> tuple[torch.dtype | None, torch.dtype | None]:
    weight, bias = (
        operand.dtype if made[0] and operand is not None and operand.requires_grad else None
        for operand in (before.norm_weight, before.norm_bias)
    )
    return weight, bias


def _passes_of(
    chain: Chain, before: Before, layers: tuple[Layer, ...], dtype: torch.dtype, made: Wanted
) -> Passes:
    """The library's passes for these sizes."""
    (x, *_, ids), first, last = before, layers[0], layers[-1]
    beside, shape = None, last.shape()
    if chain.norm is not None or len(layers) == 2:
        kind, epsilon = chain.norm or (None, 0.0)
        hidden = shape[-1] if len(layers) == 2 else 0
        experts, slots = (0, 0) if ids is None else (shape[0], ids.shape[-1])
        steps = kind, epsilon, chain.activation
        types = NAMES[x.dtype], NAMES[dtype], chain.rows_dtype()
        flags = chain.keep_fp8, first.bias is not None, last.bias is not None
        beside = Beside(hidden, experts, slots, *steps, *types, *flags)
    tokens = x.numel() // (x.shape[-1] or 1) if x.dim() else 1
    sizes = tokens, first.shape()[-1], shape[-2]
    return passes_of(*sizes, chain.recipe, made, first.casts is not None, x.device, beside)


def are_plain(tensors: Sequence[Tensor | None]) -> bool:
    """True if the tensors' memory (None: not given) is all there is to know of them."""
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in PLAIN_TYPES or tensor.is_neg() or tensor.is_meta
        ):
            return False
    return True


def _by_ops(call: _Call, parameters: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    chain, before, layers = call[:3]
    (weights, bias, casts, _), *others = layers
    if casts is None and len(weights) == 1 and not others and chain.activation is None:
        # nn.Linear leaves this to the library, which does not see fakes of torch.
        require_fitting(chain.name, before.x, weights[0], bias)
    if not differentiates(chain.name, *before, *parameters):
        y, total, _ = _forward(call)
        return y, before.x if total is None else total
    layout, tensors = flatten(call)
    results = _LayerCall.apply(layout, *tensors)  # type: ignore[no-untyped-call]
    return (results, before.x) if before.residual is None else results


class _Held(NamedTuple):
    """The tensors that backward takes beside the memory of the library's forward."""

    transposed: tuple[TransposedWeight, ...] = ()
    normed: Tensor | None = None
    """x + residual, or x, of a norm."""
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    routing: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    """Its weights and, where they have a gradient and the experts' results a bias, ids and the
    biases."""
    x: Tensor | ScaledTensor | None = None
    """The layer's input, or that of its activation, for what torch makes."""
    weights: tuple[Tensor, ...] = ()
    """For torch's gradient of the input."""

    @staticmethod
    def of(call: _Call, total: Tensor | None) -> "_Held":
        chain, before, layers, dtype, wanted, made, *_ = call
        of_x, of_weight = wanted[0] != made[0], wanted[1] != made[1]
        held = _Held(transposed_weights(chain, layers, made))
        if of_x:
            held = held._replace(weights=layers[0].weights)
        if chain.norm is not None:
            if made[0] or of_weight:
                held = held._replace(normed=before.x if total is None else total)
                held = held._replace(norm_weight=before.norm_weight, norm_bias=before.norm_bias)
        elif before.topk_weights is not None:
            shares, ids, bias = before.topk_weights, before.topk_ids, layers[-1].bias
            has_both = wanted[1] and bias is not None
            both = (ids, addable(bias, dtype)) if has_both else (None, None)
            held = held._replace(routing=(shares, *both))
        elif chain.activation is not None and len(layers) == 1:
            if wanted[0] or of_weight:
                held = held._replace(x=as_it_waits(before.x, chain.recipe, chain.keep_fp8))
        elif of_weight:
            x = before.x  # torch.compile takes no other name of it
            held = held._replace(x=x if x.dtype == dtype else x.to(dtype))
        return held


class _LayerCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Layout | _Call, *tensors: Tensor | None) -> Any:
        call: _Call = given.record(tensors) if isinstance(given, Layout) else given
        chain, before, layers, _, wanted, made, norm_dtypes, passes = call
        y, total, kept = _forward(call)
        ctx.held, held = flatten(_Held.of(call, total))
        save_tensors(ctx, kept, *held)
        ctx.layout = given if isinstance(given, Layout) else None
        ctx.chain, ctx.wanted, ctx.made, ctx.passes = chain, wanted, made, passes
        ctx.options = tuple(call.options()) if passes is None else ()
        ctx.x_dtype, ctx.norm_dtypes = before.x.dtype, norm_dtypes
        ctx.targets = [layer.targets() for layer in layers]
        return y if total is None else (y, total)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None = None) -> tuple[Any, ...]:
        chain: Chain = ctx.chain
        refuse_in_backward(chain.name, dy)
        dy = walkable(dy)
        kept, *others = saved_tensors(ctx)
        held: _Held = ctx.held.record(others)
        dx: Tensor | None = None
        of_input: Sequence[Tensor | None] = _NO_GRADIENTS[1:]
        of_layers: Sequence[Any] = _NO_GRADIENTS
        if True in ctx.made:
            x, norm_weight, norm_bias = held.normed, None, None
            if x is None or not ctx.made[0]:
                x = of_sum = None
            else:
                norm_weight, norm_bias = fitted(held.norm_weight, x), fitted(held.norm_bias, x)
                x, of_sum = x.detach(), None if of_sum is None else walkable(of_sum)
            transposed: list[Tensor | None] = []
            for weight in held.transposed:
                transposed += weight.operand(chain.recipe)
            transposed += _NO_GRADIENTS[len(transposed) :]
            given = dy, kept, x, norm_weight, norm_bias, of_sum, *held.routing, *transposed
            backward = _backward_by_op if ctx.passes is None else _backward_at_once
            (dx, *of_input), of_layers = backward(ctx, given)
        gradients = []
        for index, target in enumerate(ctx.targets):
            dw, db = of_layers[2 * index], of_layers[2 * index + 1]
            gradients.append((None if dw is None else target.handed_out(dw), db))
        if ctx.wanted != ctx.made:
            dx, of_weight = _torchs_gradients(ctx, dy, dx, held)
            gradients = [(of_weight or gradients[0][0], gradients[0][1])]
        if held.x is not None and dx is not None and chain.activation is not None:
            dx = activated_gradient(dx, wide(held.x, dx.dtype), chain.activation)
        of_before = dx, dx, *of_input, None
        if ctx.layout is not None:
            made: tuple[Any, ...] = ctx.layout.gradients(ctx, before=of_before, layers=gradients)
            return made
        flat = [None, dx, dx if ctx.needs_input_grad[2] else None, *of_input, None]
        for target, (of_weights, of_bias) in zip(ctx.targets, gradients, strict=True):
            flat += of_weights or (None,) * len(target.rows)
            flat.append(of_bias)
        return tuple(flat)


_NO_GRADIENTS: Final = (None, None, None, None)
_Gradients: TypeAlias = tuple[Sequence[Tensor | None], Sequence[Tensor | None]]
"""The library's: by the input, by norm_weight, norm_bias and topk_weights; and by weights and bias
of each layer."""


def _gradient_dtypes(ctx: Any, is_routed: bool) -> list[torch.dtype | None]:
    """The dtypes of the gradients by norm_weight, norm_bias, topk_weights, and weight and bias of
    each layer; None: the library does not make it."""
    made, targets = ctx.made, ctx.targets
    dtypes = [*ctx.norm_dtypes, torch.float32 if is_routed and made[1] else None]
    of_layers = iter(made[len(made) - 2 * len(targets) :])
    for target in targets:
        both = target.dtype(), target.bias_dtype
        dtypes += [dtype if next(of_layers) else None for dtype in both]
    return dtypes


def _backward_at_once(ctx: Any, given: Sequence[Tensor | None]) -> _Gradients:
    given = [t.resolve_neg() if t is not None and t.is_neg() else t for t in given]
    dy, shares = given[0], given[6]
    assert dy is not None
    features = ctx.targets[0].shape[-1:]
    shapes = [features, features, () if shares is None else shares.shape]
    dtypes, adds, added = _gradient_dtypes(ctx, shares is not None), [False, False], {}
    for index, target in enumerate(ctx.targets):
        shapes += target.shape, target.shape[:-1]
        place = 3 + 2 * index
        main_grad = target.added_to()
        if main_grad is not None and dtypes[place] is not None:
            dtypes[place], adds[index], added[place] = None, True, main_grad
    results: list[Tensor | None] = [
        None if dtype is None else _empty(shape, dtype=dtype, device=dy.device)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    for place, held in added.items():
        results[place] = held
    results += [None] * (7 - len(results))
    dx = None
    if ctx.made[0]:
        dx = _empty((*dy.shape[:-1], *features), dtype=ctx.x_dtype, device=dy.device)
    workspace = memory(ctx.passes.backward_workspace, dy)
    ctx.passes.run_backward(given, (dx, *results, workspace), adds, None)
    increment_version(added.values())
    return (dx, *results[:3]), results[3:]


def _backward_by_op(ctx: Any, given: Sequence[Tensor | None]) -> _Gradients:
    targets, shares = ctx.targets, given[6]
    dtypes = _gradient_dtypes(ctx, shares is not None)
    dtypes += [None] * (7 - len(dtypes))
    names = ",".join(["" if dtype is None else NAMES[dtype] for dtype in dtypes])
    first, last = targets[0].shape, targets[-1].shape
    hidden = last[-1] if len(targets) == 2 else 0
    sizes = first[-1], hidden, last[-2], 0 if shares is None else first[0]
    results = layer_backward(tuple(given), (*ctx.options, *sizes, names))
    for index, target in enumerate(targets):
        dw, main_grad = results[4 + 2 * index], target.added_to()
        if dw is not None and main_grad is not None:
            main_grad.add_(dw)
    return results[:4], results[4:8]


def _torchs_gradients(
    ctx: Any, dy: Tensor, dx: Tensor | None, held: _Held
) -> tuple[Tensor | None, tuple[Tensor | None, ...] | None]:
    """The gradients by the input and by each weight of a layer, where the recipe has their products
    in high precision. dx: that of the library."""
    chain: Chain = ctx.chain
    (target,), of_weights = ctx.targets, None
    if ctx.wanted[1] and not ctx.made[1]:
        if held.x is not None:
            rows = wide(held.x, dy.dtype)
            rows = rows if chain.activation is None else activated(rows, chain.activation)
        else:
            assert held.normed is not None
            assert chain.norm is not None
            operands = held.norm_weight, held.norm_bias
            rows = normed(held.normed, *operands, chain.norm).to(dy.dtype)
        of_weights = target.gradients(dy, Casts(None, None), rows, None, chain.recipe)
    if held.weights:
        dx = input_gradient(dy, None, held.weights, None, chain.recipe, ctx.x_dtype)
    return dx, of_weights


# Function.apply() without what it does for torch.func first: no transform is active, and it takes
# the host as long as the allocation of y.
_apply_at_once: Final[Callable[..., Any]] = super(torch.autograd.Function, _LayerCall).apply
