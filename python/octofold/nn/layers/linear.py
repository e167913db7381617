"""torch.nn.Linear in FP8."""

from collections.abc import Callable
from typing import Any, Final, Self

import torch
from torch import Tensor

from ..._core.errors import InvalidArgumentError, invalid_argument
from ..._core.library import warn_once
from ..._core.recipe import Recipe, recipe_of
from ..._info import LINEAR, TRAINED
from ..autograd.boundary import Sides, bias_on_one_rank, gather_tokens, reduce_partial, sides_of
from ..autograd.fitting import is_dtensor, local_part, require_features, require_fitting
from ..autograd.linear import linear_with_casts, wide_linear
from ..autograd.main_grad import wanted_main_grad
from ..casting.fp8_weight import Fp8Weight
from ..casting.weight_casts import casts_for_call
from ..casting.weight_tensors import WrappedWeight
from ..recipes.choice import fp8_wins
from ..recipes.kernels import has_native, layer_products
from .state import PlainState, with_state_of

_NAME: Final = "octofold.nn.Linear"
_OWN_ATTRIBUTES: Final = ("_recipe", "main_grad", "force_fp8", "_is_sharded")

_is_compiling: Final = torch.compiler.is_compiling


class Linear(PlainState, torch.nn.Linear):
    """torch.nn.Linear whose products are FP8: same parameters, same state_dict().

    in_features, out_features, bias, device, dtype: as in torch.nn.Linear; dtype bfloat16, float16
        or float32.
    recipe: an octofold.nn.Recipe or the name of one (octofold.nn.recipes).
    main_grad: whether the product that makes the weight's gradient adds it to weight.main_grad
        (float32, shape of the weight; made of zeros if there is none as forward runs), as in
        Megatron. weight.grad stays as it is, so DDP, FSDP and optimizers that read it do not work.
        Every backward through the layer adds, that of autograd.grad(y, x) too.
    force_fp8: whether to use FP8 also where it was measured to be slower than BF16
        (octofold.nn.fp8_wins).

    On a GPU without FP8 products the layer computes in the dtype of x, as torch.nn.Linear does, and
    says so once in the log.

    forward: x [..., in] of bfloat16, float16 or float32, whatever the weight's dtype, to [..., out]
    in the dtype of x, or in autocast's; octofold.linear() says what is kept for backward.

    Each forward casts the weight as it is then, whoever wrote it. Inside octofold.nn.keep_casts()
    it is cast once for several forwards.
    Raises InvalidArgumentError, which names the argument.
    """

    main_grad: bool
    force_fp8: bool
    sides: Sides | None = None
    """Boundaries where tokens enter and leave, in a group of ranks of which each has a part of the
    weight. None: the layer is whole in this process."""

    _is_sharded = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
        main_grad: bool = False,
        force_fp8: bool = False,
    ) -> None:
        recipe = recipe_of(_NAME, recipe)
        require_features(_NAME, in_features, out_features)
        super().__init__(in_features, out_features, bias, device, dtype)
        self._adopt(recipe, main_grad, force_fp8)

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        recipe: Recipe | str = "blockwise",
        *,
        main_grad: bool = False,
        force_fp8: bool = False,
    ) -> Self:
        """Make a layer with the very parameters of a torch.nn.Linear, its hooks, its training mode
        and whatever else was set on it. Raises InvalidArgumentError for anything else, also for
        subclasses, which may compute something else, and for a weight that FSDP has sharded.
        """
        operation = f"{_NAME}.from_linear"
        recipe = recipe_of(operation, recipe)
        if type(linear) is not torch.nn.Linear:
            got = f"{type(linear).__module__}.{type(linear).__qualname__}"
            raise invalid_argument(operation, "linear", "a torch.nn.Linear itself", got)
        if is_dtensor(linear.weight):
            expected = "a weight that is not sharded yet: convert before fully_shard()"
            raise invalid_argument(operation, "linear", expected, "a DTensor")
        require_features(operation, linear.in_features, linear.out_features)
        layer = with_state_of(operation, linear, cls)
        layer._adopt(recipe, main_grad, force_fp8)
        return layer

    def to_linear(self) -> torch.nn.Linear:
        """The way back: make a torch.nn.Linear with these very parameters, hooks and so on. Raises
        InvalidArgumentError for a layer that torch has parametrized since (weight_norm), and for
        one of a group of ranks.
        """
        if self.sides is not None:
            expected, got = "a layer that is whole in this process", "one of a group of ranks"
            raise invalid_argument(f"{_NAME}.to_linear", "self", expected, got)
        linear = with_state_of(f"{_NAME}.to_linear", self, torch.nn.Linear)
        for name in _OWN_ATTRIBUTES:
            linear.__dict__.pop(name, None)
        if isinstance(linear.weight, WrappedWeight):
            weight = linear.weight
            linear.weight = torch.nn.Parameter(weight.plain, weight.requires_grad)
        return linear

    @property
    def recipe(self) -> Recipe:
        """The recipe: what is cast, and how."""
        return self._recipe

    @property
    def is_sharded(self) -> bool:
        """True once FSDP has sharded the weight."""
        return self._is_sharded

    def own_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias: in a group of ranks what this one has of them."""
        own: dict[str, Any] = self._parameters  # where __getattr__() takes longer to look
        if "weight" in own and "bias" in own:
            weight, bias = own["weight"], own["bias"]
        else:
            weight, bias = self.weight, self.bias
        return (weight, bias) if self.sides is None else (local_part(weight), local_part(bias))

    def cast_weights(self) -> list[tuple[tuple[Tensor, ...], Recipe]]:
        """The casts of the layer: the weights of each cast, and the recipe (nn/casting)."""
        return [((self.weight,), self._recipe)]

    def wanted_main_grad(self) -> Tensor | None:
        """weight.main_grad where backward is to add to it."""
        return wanted_main_grad(_NAME, self.main_grad, self.weight, self._is_sharded)

    def forward(self, input: Tensor) -> Tensor:
        (weight, bias), recipe = self.own_parameters(), self._recipe
        if not isinstance(input, Tensor):
            require_fitting(_NAME, input, weight, bias)
        try:
            main_grad = self.wanted_main_grad() if self.main_grad else None
            if not has_native(input.device):
                return self._plain(input, main_grad, _why_no_products)
            if not self._wins(input, weight):
                return self._plain(input, main_grad, _slower)
            both = torch.is_grad_enabled() and input.requires_grad
            casts = casts_for_call((weight,), recipe, both, self._is_sharded)
            tensors = input, weight, bias
            return linear_with_casts(*tensors, recipe, casts, main_grad, self.sides, _NAME)
        except InvalidArgumentError:
            require_fitting(_NAME, input, weight, bias)  # the host's time counts where they fit
            raise

    def _wins(self, x: Tensor, weight: Tensor) -> bool:
        """True if FP8 is not slower than x's own dtype."""
        if self.force_fp8 or isinstance(weight, Fp8Weight):
            return True
        sizes = x.numel() // self.in_features, self.in_features, self.out_features
        return fp8_wins(*sizes, self._recipe, x.device)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self._recipe}"

    def __setattr__(self, name: str, value: Any) -> None:
        # FSDP2 swaps parameters by setattr: sharded ones, DTensors, between the passes; in a pass
        # one that has the same version and memory each time, whatever it holds.
        if is_dtensor(value):
            require_order(_NAME, name, value)
            if name == "weight":
                self.__dict__["_is_sharded"] = True
        super().__setattr__(name, value)

    def _adopt(self, recipe: Recipe, main_grad: bool, force_fp8: bool) -> None:
        self._recipe = recipe
        self.main_grad = main_grad
        self.force_fp8 = force_fp8

    def _plain(
        self, x: Tensor, main_grad: Tensor | None, why: Callable[[torch.device], str]
    ) -> Tensor:
        """Computed in the dtype of x."""
        weight, bias = self.own_parameters()
        require_fitting(_NAME, x, weight, bias)
        if not _is_compiling():
            warn_once(
                f"{_NAME}: {self.in_features} -> {self.out_features} features, recipe "
                f"{self._recipe}: {why(x.device)}"
            )
        entry, exit = sides_of(self.sides)
        if self.sides is not None:
            x = gather_tokens(x, entry)
            bias = None if bias is None else bias_on_one_rank(bias, exit)
        y = wide_linear(x, weight, bias, main_grad, x.dtype)
        return y if self.sides is None else reduce_partial(y, exit)


def _slower(device: torch.device) -> str:
    return (
        "FP8 is slower here than x's own dtype, which is used for as few tokens (force_fp8=True: "
        "FP8 all the same)"
    )


def _why_no_products(device: torch.device) -> str:
    return (
        f"x's own dtype is used, as there are no FP8 products: "
        f"{layer_products(LINEAR, TRAINED, device).why_not}"
    )


def require_order(operation: str, name: str, parameter: Any) -> None:
    """Requires that FSDP2 does not split the rows that tensor parallelism has taken from several
    matrices: torch would put them together in another order, in checkpoints."""
    split = [layout for layout in parameter.placements if hasattr(layout, "dim")]
    dims = [layout.dim for layout in split]
    # The last of a dimension's is tensor parallelism's: the others are FSDP's, strided or (torch
    # 2.11) not, and divide what it left.
    is_packed = {layout.dim: hasattr(layout, "split_factor") for layout in split}
    if any(packed and dims.count(dim) > 1 for dim, packed in is_packed.items()):
        expected = (
            "shards of another dimension than gate and up are packed in: fully_shard(module, "
        )
        expected += "shard_placement_fn=lambda parameter: Shard(1)) without biases, or gate and up "
        expected += "that are two layers (MLP.from_linears(gate, up, down))"
        raise invalid_argument(operation, name, expected, parameter.placements)
