"""Refusals of layers, as functions and as modules, of recipes and of FP8 weights: each bad argument
gets its own clear error."""

import dataclasses
import functools

import octofold
import torch
from octofold import Format, nn, quantize
from octofold.nn import Product, Recipe

from tests.python.nn import expert_support
from tests.python.nn.expert_support import HIDDEN, INNER, choices, operands
from tests.python.nn.layer_support import random
from tests.python.refusals import check, table

LAYERS = {name: getattr(octofold, name) for name in ("experts", "linear", "mlp", "norm_linear")}
NAMES = LAYERS | vars(dataclasses) | vars(expert_support) | vars(torch.nn.utils.parametrizations)
WIDE = Recipe(output=None, grad_input=None, grad_weight=None)


def refuses(call, message):
    check(call, message, NAMES | globals())


def refuses_by_name(call, message):
    """The error begins with the public name of what is called."""
    refuses(call, f"octofold.{call.partition('(')[0]}: argument {message}")


LINEAR = """
linear(random(3, 299), W, B)  argument 'x': expected [..., 300] for weight [200, 300], got [3, 299]
linear(random(), W, B)  argument 'x': expected [..., 300]
linear(X.double(), W, B)  argument 'x': expected a torch tensor of … got torch.float64
linear(X.numpy(), W, B)  argument 'x': expected a torch tensor of … got numpy.ndarray
linear(X.to("meta"), W, B)  argument 'x': expected a tensor on cpu, … got meta
linear(quantize(X), W, B)  argument 'x': … ScaledTensor
linear(X, B, B)  argument 'weight': expected [out, in]
linear(X, W[:0], B)  argument 'weight': expected … at least 1 … got [0, 300]
linear(X, W.to(torch.float8_e4m3fn), B)  argument 'weight': … float8_e4m3fn
linear(X, None, B)  argument 'weight': expected a torch tensor of … NoneType
linear(X, W, B[:199])  argument 'bias': expected [200], … got [199]
linear(X, W, B.int())  argument 'bias': expected a torch tensor of … int32
linear(X, W, B.to("meta"))  argument 'bias': expected a tensor on cpu, … got meta
linear(X, W, B, "mxfp8")  argument 'recipe': expected a Recipe or one of blockwise, … got 'mxfp8'
linear(X, W, B, None)  argument 'recipe': expected a Recipe or one of blockwise, … got None
"""
X, W, B = random(3, 300), random(200, 300), random(200)


@table(LINEAR)
def test_linear(call, message):
    refuses(call, message)


FUSED = """
norm_linear(**NORM | {"x": random(3, 191)})  argument 'x': expected [..., 192] for weight [136, 192]
norm_linear(**NORM | {"norm_weight": random(191)})
    argument 'norm_weight': expected [192], … got [191]
norm_linear(**NORM, norm_bias=random(192).int())
    argument 'norm_bias': expected a torch tensor of … int32
norm_linear(**NORM, residual=random(2, 192))
    argument 'residual': expected as x: … [3, 192] … [2, 192]
norm_linear(**NORM, residual=random(3, 192).half())
    argument 'residual': expected as x: torch.float32
norm_linear(**NORM, residual=1.0)  argument 'residual': expected a torch tensor of … float
norm_linear(**NORM, norm="batch")  argument 'norm': expected one of rms, layer, got 'batch'
norm_linear(**NORM, epsilon=-1.0)  argument 'epsilon': expected a number of at least 0, got -1.0
norm_linear(**NORM | {"weight": random(192)})  argument 'weight': expected [out, in]
norm_linear(**NORM, bias=random(135))  argument 'bias': expected [136], … got [135]
norm_linear(**NORM, recipe=WIDE)  argument 'recipe': … FP8
mlp(**MLP | {"x": random(3, 191)})  argument 'x': expected [..., 192] for gate_up_weight [320, 192]
mlp(**MLP | {"x": random(3, 192).double()})  argument 'x': expected a torch tensor of … float64
mlp(**MLP | {"gate_up_weight": random(192)})  argument 'gate_up_weight': expected [out, in]
mlp(**MLP | {"gate_up_weight": random(321, 192)})
    argument 'gate_up_weight': expected an even number
mlp(**MLP | {"down_weight": random(136, 161)})
    argument 'down_weight': expected [out, 160], as swiglu
mlp(**MLP, activation="gelu")  argument 'down_weight': expected [out, 320], as gelu
mlp(**MLP | {"down_weight": random(136, 160).to("meta")})
    argument 'down_weight': expected a tensor on cpu
mlp(**MLP, gate_up_bias=random(319))  argument 'gate_up_bias': expected [320]
mlp(**MLP, down_bias=random(135))  argument 'down_bias': expected [136]
mlp(**MLP, activation="tanh")  argument 'activation': expected one of swiglu, … got 'tanh'
mlp(**MLP, norm="batch")  argument 'norm': expected one of rms, layer, got 'batch'
mlp(**MLP, residual=random(3, 192))  argument 'residual': expected None without a norm
mlp(**MLP, norm_weight=random(192))  argument 'norm_weight': expected None without a norm
"""
NORM = {"x": random(3, 192), "norm_weight": random(192), "weight": random(136, 192)}
MLP = {"x": NORM["x"], "gate_up_weight": random(320, 192), "down_weight": random(136, 160)}


@table(FUSED)
def test_fused(call, message):
    refuses(call, message)


OF_EXPERTS = """
experts(**ALL | {"x": random(70, HIDDEN + 1)})  argument 'x': expected … 256
experts(**ALL | {"x": ALL["x"].int()})  argument 'x': expected a torch tensor
experts(**ALL | {"x": ALL["x"].to("meta")})  argument 'x': expected a tensor on cpu
experts(**ALL | {"topk_ids": torch.zeros(70, 3)})
    argument 'topk_ids': expected a torch tensor of int32
experts(**ALL | {"topk_ids": IDS[:69]})  argument 'topk_ids': expected [70, k]
experts(**ALL | {"topk_ids": IDS[:, 0]})  argument 'topk_ids': expected [70, k]
experts(**ALL | {"topk_ids": IDS[:, :0]})  argument 'topk_ids': expected … at least 1
experts(**ALL | {"topk_weights": torch.rand(70, 4)})
    argument 'topk_weights': expected … , the shape of
experts(**ALL | {"topk_weights": IDS})  argument 'topk_weights': expected a torch tensor
experts(**ALL | {"w13": random(2 * INNER, HIDDEN)})  argument 'w13': expected [experts, out, in]
experts(**ALL | {"w13": random(EXPERTS, 2 * INNER + 1, HIDDEN)})
    argument 'w13': expected … gate and up
experts(**ALL | {"w13": None})  argument 'w13': expected a torch tensor
experts(**ALL | {"w2": random(EXPERTS, HIDDEN, INNER + 1)})  argument 'w2': expected [5, 256, 192]
experts(**ALL | {"w2": random(EXPERTS + 1, HIDDEN, INNER)})  argument 'w2': expected
experts(**ALL | {"w2": random(EXPERTS, HIDDEN, INNER, 1)})  argument 'w2': expected
experts(**ALL | {"w2": quantize(ALL["w2"], "channel")})
    argument 'w2': expected scales of 128x128, as
experts(**ALL | {"b13": random(EXPERTS, INNER)})  argument 'b13': expected [5, 384]
experts(**ALL | {"b2": random(HIDDEN)})  argument 'b2': expected [5, 256]
experts(**ALL | {"b2": ALL["b2"].to("meta")})  argument 'b2': expected a tensor on cpu
experts(**ALL, activation="tanh")  argument 'activation': expected one of
experts(**ALL, compute="fp8")  argument 'compute': expected one of auto
experts(**ALL, recipe="rowwise_with_gw_hp")
    argument 'recipe': expected one whose products are all in FP8
experts(**ALL, recipe="other")  argument 'recipe': expected a Recipe or one of
experts(**ALL, recipe=replace(FINE, grad_input=None))
    argument 'recipe': expected one whose products are all in FP8
experts(**ALL, recipe=replace(FINE, output=SQUARES))
    argument 'recipe': expected one whose rows have scales of 1x128
"""
IDS = choices()
ALL = operands(bias=True) | {"topk_ids": IDS}
FINE, SQUARES = nn.recipes.blockwise, Product("128x128 torchao", "128x128 torchao")


@table(OF_EXPERTS)
def test_experts(call, message):
    refuses(call, message)


MODULES = """
nn.Linear(0, 5)  'in_features': expected a whole number of at least 1, got 0
nn.Linear(3, -1)  'out_features': expected a whole number of at least 1, got -1
nn.Linear(2.5, 5)  'in_features': expected a whole number of at least 1, got 2.5
nn.Linear(3, 5, recipe="mxfp8")  'recipe': expected a Recipe or one of blockwise, … 'mxfp8'
nn.Linear.from_linear(torch.nn.Bilinear(3, 3, 3))
    'linear': expected a torch.nn.Linear itself, got torch.nn … Bilinear
nn.Linear.from_linear(torch.nn.LazyLinear(3))
    'linear': expected a torch.nn.Linear itself, got torch.nn … LazyLinear
nn.Linear.from_linear(nn.Linear(3, 3))
    'linear': expected a torch.nn.Linear itself, got octofold.nn.Linear
nn.Linear.from_linear(weight_norm(torch.nn.Linear(3, 3)))  'linear': expected a … itself
nn.NormLinear.from_modules(torch.nn.BatchNorm1d(192), DOWN)  'norm': expected a torch.nn.RMSNorm or
nn.NormLinear.from_modules(torch.nn.RMSNorm(193), GATE)  'norm': expected one over [192]
nn.NormLinear.from_modules(RMS, torch.nn.ReLU())  'linear': expected a torch.nn.Linear
nn.NormLinear.from_modules(RMS, GATE, WIDE)  'recipe': expected one whose product 'output'
nn.NormLinear.from_modules(RMS, nn.Linear(192, 136), "rowwise")  'recipe': … own, blockwise
nn.NormLinear.from_modules(RMS, nn.Linear(192, 136, recipe=WIDE))  'recipe' … output=None
nn.MLP.from_linears(GATE, DOWN, UP)  'linears': expected gate and up of one shape
nn.MLP.from_linears(GATE, torch.nn.Linear(192, 161, False), DOWN)
    'linears': expected gate and up of one shape, got … 161
nn.MLP.from_linears(GATE, torch.nn.Linear(192, 160), DOWN)
    'linears': … of one shape, got … bias=True
nn.MLP.from_linears(GATE, UP, UP)  'linears': expected [out, 160]
nn.MLP.from_linears(GATE)  'linears': expected 2 layers or 3 layers for swiglu, got 1
nn.MLP.from_linears(GATE, UP, DOWN, activation="gelu")  'linears': expected 2 layers for gelu, got 3
nn.MLP.from_linears(GATE, UP, torch.nn.ReLU())  'linears[2]': expected a torch.nn.Linear or
nn.MLP.from_linears(GATE, UP, DOWN, recipe=WIDE)  'recipe': expected one whose product 'output'
nn.MLP.from_linears(GATE, UP, nn.Linear(160, 136, recipe="rowwise"))
    'linears': … one recipe, got blockwise, row
nn.MLP.from_linears(GATE, UP, DOWN, norm=torch.nn.RMSNorm(8))  'norm': expected one over [192]
nn.MLP.from_linears(GATE, UP, DOWN, norm="rms")  'norm': expected a torch.nn.RMSNorm or
nn.MLP(192, 0)  'hidden_features'
nn.Experts(0, 8, 2)  'hidden_features': expected a whole number
nn.Experts(8, 0, 2)  'inner_features': expected a whole number
nn.Experts(8, 8, 0)  'experts': expected a whole number
nn.Experts(8, 8, 2, recipe="rowwise_with_gw_hp")  'recipe': expected one whose products are all
nn.Experts(8, 8, 2, activation="tanh")  'activation': expected one of
nn.Experts.from_weights(ALL["w13"], ALL["w2"], compute="fp8")  'compute': expected one of auto
nn.Experts.from_weights(coded(compute="copy"), STACK)  'compute': … weight-only, got 'copy'
nn.Experts.from_weights(coded(compute="native"), FP8_STACK, activation="gelu")
    'w2': expected compute=native, as asked or as the other weight has it, got auto
nn.Experts.from_weights(FP8_STACK, STACK, None, None, "gelu", compute="native")  'w13': … got auto
nn.Experts.from_weights(coded(batch_invariant=True), STACK)  'w13': … batch_invariant: … True
nn.Experts.from_weights(STACK, WRONG_SCALES, None, None, "gelu")  'w2': expected scales [2, 1, 1]
nn.Experts.from_weights(ALL["w13"], ALL["w2"][:1])  'w2'
nn.Experts.from_experts(None, EACH, EACH)  'gate'
nn.Experts.from_experts(EACH, EACH[1:], EACH)  'up'
nn.Experts.from_experts(EACH, [], EACH)  'up'
nn.Experts.from_experts(EACH, [*EACH[1:], EACH[0][1:]], EACH)  'up'
nn.Experts.from_experts(CAST, EACH, EACH)  'up'
nn.Experts.from_experts(EACH, EACH, EACH, "gelu")  'gate': expected None for gelu
nn.Experts.from_experts(ODD, ODD, CAST)  … where `inner` is a multiple of 128
nn.TopKRouter(8, 4, 5)  'top_k': expected at most 4
nn.TopKRouter(8, 0, 1)  'experts': expected a whole number
nn.inference_linear(torch.nn.ReLU())  'linear': expected a torch.nn.Linear, got
nn.weight_only_linear(torch.nn.ReLU())  'linear': expected a torch.nn.Linear, got
nn.inference_linear(PLAIN, recipe="fp8")  'recipe': expected a Recipe or one of
nn.inference_linear(PLAIN, recipe=WIDE)  'recipe': expected one whose product 'output' is in FP8
nn.inference_linear(PLAIN, few_tokens=-1)  'few_tokens': expected a number
nn.convert_weight_only(PLAIN, activations="fp8")  'activations': expected 'exact' or 'auto', got fp8
nn.Conv1D.from_conv1d(PLAIN)  'conv1d': expected a transformers Conv1D, got torch
nn.convert(PLAIN, module_filter_fn=lambda module, fqn: False)
    'module_filter_fn': expected to pick a torch.nn.Linear … _fn does not pick it
nn.convert(PLAIN, "mxfp8")  'recipe': expected a Recipe or one of blockwise, … got 'mxfp8'
nn.convert(torch.nn.ReLU())  'model': expected a torch.nn.Linear … got ReLU with no torch.nn.Linear
nn.cast_after_step([HELD], HELD)
    'optimizer': expected a torch.optim.Optimizer, or several, got Linear
nn.cast_after_step([OPTIMIZER, None], HELD)  'optimizer': … got NoneType
nn.cast_after_step(OPTIMIZER, HELD.weight)  'model': expected a torch.nn.Module, got Parameter
nn.cast_after_step(OPTIMIZER, PLAIN)  'model': expected a module with FP8 layers
nn.cast_after_step(OPTIMIZER, nn.Linear(96, 64, recipe=WIDE))
    'model': … FP8 layers, whose outputs are in FP8
nn.cast_after_step(OPTIMIZER, nn.Linear(96, 64, device="meta"))
    'model': … with memory, got … on meta
nn.cast_after_step(OPTIMIZER, weight_norm(nn.Linear(96, 64)))
    'model': … weights that are whole in this process
nn.cast_after_step(OPTIMIZER, HELD)  'model': … not held yet: remove()
"""
PLAIN, RMS = torch.nn.Linear(3, 3), torch.nn.RMSNorm(192)
GATE, UP, DOWN = (torch.nn.Linear(*s, False) for s in ((192, 160), (192, 160), (160, 136)))
EACH = [*ALL["w2"]]
CAST, ODD = (
    [quantize(one, "128x128") for one in stack] for stack in (EACH, random(5, INNER, HIDDEN))
)
STACK = random(2, 128, 128)
coded = functools.partial(nn.Fp8Weight.cast, STACK, "128x128", 2)
FP8_STACK = coded()
WRONG_SCALES = nn.Fp8Weight(FP8_STACK.codes, torch.ones(2, 2, 1))
CODED_LAYER = nn.Experts.from_weights(FP8_STACK, FP8_STACK, activation="gelu")
HELD = nn.Linear(96, 64)
OPTIMIZER = torch.optim.SGD(HELD.parameters(), 0.1)
nn.cast_after_step(OPTIMIZER, torch.nn.Sequential(PLAIN, HELD))


@table(MODULES)
def test_modules(call, message):
    refuses_by_name(call, message)


OTHERS = """
nn.inference_linear(PLAIN)(random(2, 4).half())  'x': expected [..., 3]
nn.weight_only_linear(PLAIN)(random(2, 4).half())  'x': expected [..., 3]
nn.inference_linear(PLAIN)(random(2, 3).int())  'x': expected a torch tensor of
nn.weight_only_linear(PLAIN)(random(2, 3).int())  'x': expected a torch tensor of
nn.MLP.from_linears(GATE, UP, DOWN)(MLP["x"], MLP["x"])  'residual': expected None
nn.Experts(HIDDEN, 8, 5)(ALL["x"][:, 1:], IDS, ALL["topk_weights"])
    octofold.nn.Experts: argument 'x'
nn.Experts(HIDDEN, 8, 5)(ALL["x"], IDS[1:], ALL["topk_weights"])
    octofold.nn.Experts: argument 'topk_ids'
setattr(CODED_LAYER, "up_proj", nn.Fp8Weight.cast(STACK, "channel"))  'up_proj': … 128x128
setattr(CODED_LAYER, "up_proj", coded(compute="native"))  'up_proj': expected compute=auto, … native
nn.TopKRouter(8, 4, 2, "argmax")(random(3, 8))  scoring 'argmax'
nn.recipes.batch_invariant("tensorwise")  'output.a' … rows … got 'tensor'
Recipe(**FP8 | {"output": Product("128x128", "128x128", batch_invariant=True)})
    'output.a' … got '128x128'
replace(nn.recipes.blockwise.output, batch_invariant=1)  'batch_invariant': expected True or
Recipe(**FP8 | {"output": "blockwise"})
    Recipe: argument 'output': expected a Product, or None … got 'blockwise'
Recipe(**FP8 | {"grad_weight": Product("tensor", "e5m2 tensor")})
    Recipe: argument 'grad_weight.b': … e4m3, got e5m2
Recipe(**FP8 | {"grad_input": Product("tensor", "tensor te")})
    Recipe: argument 'grad_input.b': … deepgemm, got te
Recipe(**FP8 | {"grad_weight": Product(ROUNDED, "tensor")})
    Recipe: argument 'grad_weight.a': … None, got True
Product("2x2", "tensor")  Product: argument 'a': expected at most one word of each kind … got '2x2'
Product("tensor", None)  Product: argument 'b': expected a Format or a text, got None
Product("1x128", "channel", fast_accumulation=True)
    Product: argument 'fast_accumulation': expected False, as 1x128 scales vary … got True
Product("channel", "channel", fast_accumulation=1)  Product: argument 'fast_accumulation': … True or
nn.Fp8Weight.cast(random(4, 8, 8))  'weight': expected [out, in], or … got [4, 8, 8]
nn.Fp8Weight.cast(random(4, 8, 8), matrices=2)  'matrices': expected the experts … 2 of [4, 8, 8]
nn.Fp8Weight.cast(random(1, 8, 8), matrices=True)  'matrices': … got True
nn.weight_only_linear(PLAIN, format="1x64")  'format': expected … got '1x64'
nn.weight_only_linear(PLAIN, format="int8")  'format': expected … got 'int8'
nn.Fp8Weight.cast(W, "3x3")  'format': expected at most one word
nn.Fp8Weight.cast(W, compute="int8")  'compute': expected one of auto, native, weight-only, copy
nn.Fp8Weight(W)  'codes': expected FP8 codes with their scales, got … 32
torch.nn.functional.linear(X[:, :299], nn.Fp8Weight.cast(W))  'x': expected
"""
ROUNDED = Format(granularity="tensor", power_of_two=True)
FP8 = dict.fromkeys(("output", "grad_input", "grad_weight"), Product("tensor", "tensor"))


@table(OTHERS)
def test_calls_recipes_and_weights(call, message):
    refuses(call, message)
