"""FP8 linear layers, casts counted, beside BF16 and torchao:

    python bench/gpu/run.py linear RESULTS.jsonl
    python bench/gpu/run.py linear RESULTS.jsonl --sections layers block --seconds 300
    python bench/gpu/run.py linear RESULTS.jsonl --sections layers --recipes blockwise --no-torchao
    python bench/gpu/run.py linear RESULTS.jsonl --shape 4096,4096,4096 --passes both
    python bench/gpu/run.py linear RESULTS.jsonl --sections inference

Sections:
    layers     one layer, x BF16 [tokens, in] that requires a gradient, weights BF16 that are cast
               in every step: forward, forward + backward; FP8 also where the layer would choose
               BF16 itself
    block      a block of Llama-8B's, forward + backward, with its norms and MLP fused too
    inference  octofold.nn.inference_linear for 1 to 64 tokens, six N,K

All results are first compared with FP64 (the block's with FP32).
"""

import copy
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import octofold.nn
import torch
from common.measure import Build, geometric_mean
from common.measure import measure as measure_builds
from common.models import LlamaBlock
from common.operands import calls_of, normal, sets_of
from common.run import Run, add_choices, print_table, sizes, text_of
from octofold_tool.gemm_options import DEEPSEEK_V3
from octofold_tool.gpu.measuring import Implementation, relative_error
from torch import Tensor, nn

ROUNDS, SECONDS = 9, 540
SECTIONS = ("layers", "block", "inference")
SHAPES = ((8192, 4096, 4096), (16384, 14336, 4096), (16384, 28672, 8192))
TINY_SHAPES = ((256, 384, 256),)  # on a CPU
TOKENS = (1, 2, 4, 8, 16, 32, 64)
RECIPES = (
    "blockwise",
    "rowwise",
    "tensorwise",
    "rowwise_with_gw_hp",
)
TORCHAO = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
BFLOAT16, BFLOAT16_COMPILED = "BF16", "BF16 compiled"
PASSES = ("forward", "both")  # of a training step, with what backward will need
ROWS = 256  # of each matrix are compared
BFLOAT16_ERRORS = (1e-2, 0.0)
FP8_ERRORS = (0.1, 1e-2)
"""Relative errors at most, and the output's at least. Rounding normal values costs 2.6 % in e4m3,
5.3 % in e5m2, 0.2 % in BF16, and a product has two rounded operands."""
BLOCK_BFLOAT16_ERRORS = (0.05, 0.0)
BLOCK_FP8_ERRORS = (0.25, 2e-2)  # a few products in a row
LLAMA_8B, TINY_BLOCK = (4096, 32, 8, 14336), (256, 4, 2, 512)

Shape = tuple[int, ...]  # tokens, out, in


def add_options(parser):
    add_choices(parser, "--sections", SECTIONS)
    add_choices(parser, "--recipes", RECIPES)
    add_choices(parser, "--passes", PASSES)
    add = parser.add_argument
    add("--shape", type=sizes, action="append", metavar="TOKENS,OUT,IN")
    add("--layer", type=sizes, action="append", metavar="N,K", help="of inference")
    add("--tokens", type=int, nargs="+", default=TOKENS, help="of inference; default: 1 to 64")
    add("--block-tokens", type=int, metavar="TOKENS", help="of the block; default: 8192")
    add("--sequence", type=int, help="tokens of a sequence of the block; default: all")
    add("--no-torchao", action="store_true")
    add("--no-eager", action="store_true", help="Octofold under torch.compile only")
    add("--no-compiled", action="store_true", help="BF16 and Octofold eager only")


@dataclass(frozen=True)
class Variant:
    """How a model's linear layers compute."""

    name: str
    convert: Callable[[nn.Module], None]  # in place
    compiled: bool
    recipe: str | None = None  # of Octofold

    @property
    def is_fp8(self) -> bool:
        return self.name not in (BFLOAT16, BFLOAT16_COMPILED)

    @property
    def is_ours(self) -> bool:
        return self.recipe is not None

    def build(self, model: nn.Module) -> nn.Module:
        """A copy of the model, converted. Raises what torchao raises for what it cannot do."""
        built = copy.deepcopy(model)
        self.convert(built)
        return torch.compile(built, dynamic=False) if self.compiled else built


def leave(model: nn.Module) -> None:
    """BF16 as it is."""


def by_torchao(recipe: str, model: nn.Module) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe))


def by_octofold(recipe: str, model: nn.Module) -> None:
    """FP8 whatever the layer would choose: its choice rests on these measurements."""
    octofold.nn.convert(model, recipe=recipe, force_fp8=True)


def variants(options: Any) -> Iterator[Variant]:
    """BF16 first, then the peers, then Octofold, as far as wanted and there. BF16 and torchao are
    always there, the latter only as it is meant to be used: compiled."""
    yield Variant(BFLOAT16, leave, False)
    if not options.no_compiled:
        yield Variant(BFLOAT16_COMPILED, leave, True)
    if not options.no_torchao and importlib.util.find_spec("torchao"):
        for name in TORCHAO:
            yield Variant(f"torchao {name} compiled", partial(by_torchao, name), True)
    for recipe in options.recipes:
        yield from eager_and_compiled(
            f"octofold {recipe}", partial(by_octofold, recipe), recipe, options
        )


def eager_and_compiled(
    name: str, convert: Callable[[nn.Module], None], recipe: str, options: Any
) -> Iterator[Variant]:
    if not options.no_eager:
        yield Variant(name, convert, False, recipe)
    if not options.no_compiled:
        yield Variant(f"{name} compiled", convert, True, recipe)


def trained(model: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A step's forward and backward: output and gradients of x and of the parameters, which are new
    memory each, as after zero_grad()."""
    y = model(x)
    return y, torch.autograd.grad(y, (x, *model.parameters()), dy)


def cases(run: Run) -> Iterator[tuple[Callable[..., Any], Any]]:
    """The function that measures, and what."""
    torch._dynamo.config.recompile_limit = 64  # all variants compile the same module's code
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    options = run.options
    if "layers" in options.sections:
        for shape in options.shape or (SHAPES if run.on_gpu else TINY_SHAPES):
            yield measure_layer, shape
    if "block" in options.sections:
        yield measure_block, options.block_tokens or (8192 if run.on_gpu else 256)
    if "inference" in options.sections:
        for layer in options.layer or (DEEPSEEK_V3 if run.on_gpu else [(256, 256)]):
            yield measure_inference, layer


def measure(run: Run, case: tuple[Callable[..., Any], Any]) -> Any:
    function, size = case
    return function(run, size)


def operands(run: Run, shape: Shape) -> tuple[Tensor, Tensor]:
    """x [tokens, in] and dy [tokens, out]."""
    tokens, out_features, in_features = shape
    dy = (1e-3 * torch.randn(tokens, out_features, device=run.device)).bfloat16()
    return normal(run, tokens, in_features).requires_grad_(), dy


def pass_of(name: str, model: nn.Module, x: Tensor, dy: Tensor) -> Any:
    return trained(model, x, dy) if name == "both" else model(x)


def errors_of(layer: nn.Module, weight: Tensor, x: Tensor, dy: Tensor) -> dict[str, float]:
    """Errors of the first rows of y = x · weightᵀ, dx = dy · weight and dw = dyᵀ · x."""
    y, (dx, dw) = trained(layer, x, dy)
    with torch.no_grad():
        wide = weight.double()
        errors = {
            "y": relative_error(y[:ROWS], x[:ROWS].double() @ wide.T),
            "dx": relative_error(dx[:ROWS], dy[:ROWS].double() @ wide),
        }
        del wide
        errors["dw"] = relative_error(dw[:ROWS], dy[:, :ROWS].double().T @ x.double())
    return errors


def measure_layer(run: Run, shape: Shape) -> None:
    size = 2 * shape[0] * (shape[1] + shape[2])
    sets = sets_of(partial(operands, run, shape), size, run)
    layer = nn.Linear(shape[2], shape[1], False, run.device, torch.bfloat16)
    nn.init.normal_(layer.weight, std=0.02)
    model = nn.Sequential(layer)  # as convert() swaps children only
    built: dict[Variant, nn.Module] = {}  # for all passes

    def make(variant: Variant, passes: str) -> Implementation:
        if variant not in built:
            built[variant] = variant.build(model)
        calls = calls_of(partial(pass_of, passes, built[variant]), sets)
        limits = FP8_ERRORS if variant.is_fp8 else BFLOAT16_ERRORS
        return Implementation(
            calls, partial(errors_of, built[variant], layer.weight, *sets[0]), *limits
        )

    chosen = list(variants(run.options))
    for passes in run.options.passes:
        builds = (
            Build(variant.name, partial(make, variant, passes), variant.is_ours)
            for variant in chosen
        )
        facts = {"shape": text_of(shape), "passes": passes}
        measure_builds(run, "layer", f"{text_of(shape)} {passes}", builds, BFLOAT16, **facts)


def fuse(recipe: str, model: nn.Module) -> None:
    model.fuse(recipe)


def block_variants(run: Run) -> Iterator[Variant]:
    """Yields those of layers, and blocks whose norms and MLP are fused with their casts."""
    yield from variants(run.options)
    for recipe in run.options.recipes:
        name = f"octofold {recipe}, fused"
        yield from eager_and_compiled(name, partial(fuse, recipe), recipe, run.options)


def new_block(sizes: tuple[int, ...], device: torch.device) -> LlamaBlock:
    """Weights normal, so that the branches have about the size of the residual."""
    with device:
        block = LlamaBlock(*sizes)
    for parameter in block.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return block.to(torch.bfloat16)


def block_operands(
    tokens: int, sequence: int, hidden: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """x and dy. What a step reads and writes besides is far larger than any L2 cache."""
    shape = (tokens // sequence, sequence, hidden)
    x = torch.randn(shape, device=device).bfloat16().requires_grad_()
    return x, (1e-3 * torch.randn(shape, device=device)).bfloat16()


def block_errors(model: nn.Module, x: Tensor, dy: Tensor, exact: list[Tensor]) -> dict[str, float]:
    """Returns errors of the output without the residual, of dx without dy and of the weights'
    gradients (the worst), against the same block in FP32."""
    results = branches(x, dy, *trained(model, x, dy))
    errors = [relative_error(a, e.double()) for a, e in zip(results, exact, strict=True)]
    return {"y": errors[0], "dx": errors[1], "dw": max(errors[2:])}


def branches(x: Tensor, dy: Tensor, y: Tensor, gradients: tuple[Tensor, ...]) -> list[Tensor]:
    dx, *rest = gradients
    return [(y.float() - x.float()).detach(), dx.float() - dy.float(), *rest]


def exact_branches(block: LlamaBlock, x: Tensor, dy: Tensor) -> list[Tensor]:
    """By the same block in FP32."""
    wide = copy.deepcopy(block).float()
    x32 = x.detach().float().requires_grad_()
    return branches(x32, dy, *trained(wide, x32, dy.float()))


def measure_block(run: Run, tokens: int) -> None:
    size, sequence = LLAMA_8B if run.on_gpu else TINY_BLOCK, run.options.sequence or tokens
    block = new_block(size, run.device)
    x, dy = block_operands(tokens, sequence, size[0], run.device)
    exact = exact_branches(block, x, dy)

    def make(variant: Variant) -> Implementation:
        model = variant.build(block)
        return Implementation(
            [partial(trained, model, x, dy)],
            lambda: block_errors(model, x, dy, exact),
            *(BLOCK_FP8_ERRORS if variant.is_fp8 else BLOCK_BFLOAT16_ERRORS),
        )

    case = f"{text_of(size)}, {tokens} tokens in sequences of {sequence}, forward + backward"
    baseline = BFLOAT16 if run.options.no_compiled else BFLOAT16_COMPILED
    builds = [
        Build(variant.name, partial(make, variant), variant.is_ours)
        for variant in block_variants(run)
    ]
    measure_builds(run, "block", case, builds, baseline, tokens=tokens, sequence=sequence)


@torch.no_grad()
def measure_inference(run: Run, layer: tuple[int, int]) -> tuple[str, dict[int, float]]:
    """Weights and activations go round sets larger than the L2 cache. Returns BF16's time over ours
    by the number of tokens."""
    out_features, in_features = layer

    def plain() -> nn.Linear:
        made = nn.Linear(in_features, out_features, False, run.device, torch.bfloat16)
        nn.init.normal_(made.weight, std=0.02)
        return made

    wide = sets_of(plain, out_features * in_features, run)
    narrow = [octofold.nn.inference_linear(each) for each in wide]
    ratios = {}
    for m in run.options.tokens:
        inputs = [normal(run, m, in_features) for _ in wide]
        expected = inputs[0].double() @ wide[0].weight.double().T

        def make(
            layers: Sequence[nn.Module],
            limits: tuple[float, float],
            inputs: Sequence[Tensor] = inputs,
            expected: Tensor = expected,
        ) -> Implementation:
            calls = [partial(each, x) for each, x in zip(layers, inputs, strict=True)]
            return Implementation(calls, lambda: relative_error(calls[0](), expected), *limits)

        builds = [
            Build(BFLOAT16, partial(make, wide, BFLOAT16_ERRORS)),
            Build("octofold", partial(make, narrow, FP8_ERRORS), True),
        ]
        found = measure_builds(run, "inference", text_of((m, *layer)), builds, BFLOAT16, tokens=m)
        if len(found) == 2:
            ratios[m] = found[BFLOAT16].microseconds / found["octofold"].microseconds
    return text_of(layer), ratios


def summary(found):
    layers = dict(each for each in found if each is not None)
    rows = []
    for m in next(iter(layers.values()), ()):
        ratios = [of_layer[m] for of_layer in layers.values() if m in of_layer]
        if len(ratios) == len(layers):
            rows.append([str(m), *(f"{ratio:.2f}" for ratio in ratios), geometric_mean(ratios)])
    if rows:
        columns = ["tokens", *layers, "geometric mean"]
        print_table("Inference, × BF16's rate", columns, rows)
