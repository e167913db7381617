"""Helpers that tests of layers share."""

from functools import partial

import pytest
import torch
from octofold import nn

NAMES = tuple(nn.recipes.NAMED)
"""The named recipes."""

WIDTH = 256
"""Features of what MODULES take."""


class Routed(torch.nn.Module):
    """Experts as a module of x alone, whose rows go to experts by their places."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, x):
        ids = torch.arange(2 * x.shape[0], dtype=torch.int32).view(-1, 2) % 4
        return self.experts(x, ids, torch.full(ids.shape, 0.5))


class Checkpointed(torch.nn.Module):
    def __init__(self, module, **options):
        super().__init__()
        self.module, self.options = module, options

    def forward(self, *inputs):
        return torch.utils.checkpoint.checkpoint(self.module, *inputs, **self.options)


def mlp_of_three(recipe, width=WIDTH, hidden=128):
    """Gate, up and down in layers of their own."""
    sizes = (width, hidden), (width, hidden), (hidden, width)
    return nn.MLP.from_linears(*(nn.Linear(*size, recipe=recipe) for size in sizes))


def modules():
    for recipe in NAMES:
        yield recipe, partial(nn.Linear, WIDTH, 128, recipe=recipe)
    for recipe, norm in (("blockwise", "rms"), ("rowwise", "layer"), ("tensorwise", "rms")):
        options = {"norm": norm, "recipe": recipe}
        yield f"norm and linear, {recipe}", partial(nn.NormLinear, WIDTH, 128, **options)
        yield f"norm and mlp, {recipe}", partial(nn.MLP, WIDTH, 128, **options)
        yield f"experts, {recipe}", lambda r=recipe: Routed(nn.Experts(WIDTH, 128, 4, recipe=r))
    for recipe in ("blockwise", "rowwise_with_gw_hp"):
        yield f"mlp of three, {recipe}", partial(mlp_of_three, recipe)
    options = {"scoring": "sigmoid", "choice_bias": True}
    yield "mixture of experts", partial(nn.MixtureOfExperts, WIDTH, 128, 4, 2, 64, **options)


MODULES = dict(modules())
"""Makers of all that trains, each with the recipes that change its way."""
KINDS = {name: make for name, make in MODULES.items() if name.endswith(("blockwise", "experts"))}
"""One maker of each kind."""


def every(modules):
    return pytest.mark.parametrize("make", modules.values(), ids=modules)


def inputs_of(module, tokens=65, dtype=torch.float32):
    """x, and a residual where there is a norm before the layers."""
    return [random(tokens, WIDTH, dtype=dtype) for _ in range(2 if has_norm(module) else 1)]


def has_norm(module):
    return getattr(module, "norm", None) is not None


def compiled(module, **options):
    return torch.compile(module, fullgraph=True, backend="aot_eager", **options)


def ask_for_main_grad(module):
    for part in module.modules():
        if hasattr(part, "main_grad"):
            part.main_grad = True


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def relative_error(actual, expected):
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).norm() / expected.norm())


def gradients(function, x, weight, bias, dy):
    """(y, dx, dw, db) of function(x, weight, bias), from fresh leaves."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    y = function(*leaves)
    y.backward(dy.to(y.dtype))
    return y.detach(), *[None if leaf is None else leaf.grad for leaf in leaves]


def step(module, *inputs, dy=None):
    """A module's result (with the sum beside it), the gradients of the inputs, and those of the
    parameters that have them in .grad. dy: of the result; else it is as for a sum of squares."""
    module.zero_grad()
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = module(*leaves)
    y = y if isinstance(y, torch.Tensor) else y[0] + y[1].sum(-1, keepdim=True)
    y.backward(2 * y.detach() if dy is None else dy.to(y.dtype))
    of_parameters = [
        p.grad.clone()
        for p in module.parameters()
        if p.grad is not None and not hasattr(p, "main_grad")
    ]
    return [y.detach(), *[t.grad for t in leaves], *of_parameters]


def exact(x, weight, bias, dy):
    """The same in FP64."""
    operands = [None if t is None else t.double() for t in (x, weight, bias)]
    return gradients(torch.nn.functional.linear, *operands, dy.double())


def through_numpy(weight):
    weight.detach().numpy()[:] *= 2


def through_a_flat_buffer(weight):
    """DeepSpeed's ZeRO: parameters are views of one buffer, into which masters are copied."""
    flat = torch.zeros(weight.numel() + 128)
    master = 2 * weight.detach().flatten()
    weight.data = flat[128:].view_as(weight)
    flat[128:].copy_(master)


def through_the_old_buffer(weight):
    """The same, of a buffer that the weight has been a view of since before the first forward."""
    weight.data.view(-1).copy_(2 * weight.detach().flatten())


def from_a_master(weight):
    """Megatron's optimizers with FP32 masters."""
    master = 2 * weight.detach().clone()
    weight.data.copy_(master)


def as_an_average(weight):
    """Averages of weights, targets of reinforcement learning."""
    other = 3 * weight.detach() + weight.detach()
    weight.data.mul_(0).add_(other, alpha=0.5)


def in_place(weight):
    with torch.no_grad():
        weight.mul_(2)


def fused_step(weight):
    weight.grad = -weight.detach().clone()
    torch.optim.SGD([weight], lr=1.0, fused=True).step()
    weight.grad = None


WRITES = {
    "numpy": through_numpy,
    "flat buffer": through_a_flat_buffer,
    "old buffer": through_the_old_buffer,
    "master": from_a_master,
    "average": as_an_average,
    "in place": in_place,
    "fused step": fused_step,
    "data": lambda weight: weight.data.mul_(2),
    "new data": lambda weight: setattr(weight, "data", weight.data * 2),
    "detach": lambda weight: weight.detach().mul_(2),
    "foreach": lambda weight: torch._foreach_mul_([weight.data], 2),
    "subtraction": lambda weight: weight.data.sub_(-weight.detach().clone()),
}
"""Ways in which weights are written: each doubles one, in place or in new memory."""


SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "vocab_size": 32,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
    "intermediate_size": 192,
    "moe_intermediate_size": 192,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "v_head_dim": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "num_shared_experts": 1,
    "shared_expert_intermediate_size": 128,
    "experts_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes of small language models of transformers, whose configurations have some of these names."""


def transformers_model(family, kind="AutoModelForCausalLM", **sizes):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    try:
        config = transformers.AutoConfig.for_model(family, **SIZES | sizes)
    except ValueError:
        pytest.skip(f"this transformers has no {family}")
    torch.manual_seed(0)
    return getattr(transformers, kind).from_config(config).float()
