"""Layers of Qwen3-30B-A3B as transformers has them, forward and backward: in BF16 by transformers'
best, and by octofold.nn.convert(), convert_experts(), convert_norms() and convert_rotary().

    python bench/gpu/run.py transformers_experts RESULTS.jsonl [--layers 4] [--tokens 8192 2x4096]
        [--only eager compiled]

Random weights, BF16 parameters, attention by scaled_dot_product_attention() without a mask, experts
by transformers' "grouped_mm". The layers, their last norm and the rotary embedding are called as
Qwen3MoeModel calls them, but without the mask that it makes where it cannot look at positions
(under torch.compile, in a CUDA graph). A step is forward and the gradients of all parameters and of
the input.

By name alone: the step in a CUDA graph, or by events where none can be captured; "called": as
Python calls it, with what that takes of the host. Octofold casts weights in each step; "behind": by
cast_after_step(), with the casts that an optimizer's step adds; "held": without these, as most of
several micro-batches.
"""

from functools import partial

import octofold
import torch
import transformers
from common.measure import Build
from common.measure import measure as measure_builds
from common.run import add_choices
from octofold._timing import GRAPH, WALL
from octofold_tool.gpu.measuring import Implementation
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeModel

ROUNDS, SECONDS = 7, 540
CASE_SECONDS = 600.0  # compilations take minutes
BF16 = torch.bfloat16
LAYERS = {
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
TINY = {
    "hidden_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}
SHARED = {"norm_topk_prob": True, "vocab_size": 64, "intermediate_size": 256}
# Relative to BF16's, of the output and of all gradients. Casts alone lose 2.6 % of each product;
# beside them a token whose experts are close goes to another one, of which nothing is the same.
LIMIT = 0.35


class Layers(torch.nn.Module):
    """Does to embeddings what Qwen3MoeModel does."""

    def __init__(self, model):
        super().__init__()
        self.layers, self.norm, self.rotary_emb = model.layers, model.norm, model.rotary_emb

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)[None]
        embeddings = self.rotary_emb(x, position_ids=positions)
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_embeddings=embeddings)
        return self.norm(x)


def new_layers(count, sizes, run):
    config = transformers.Qwen3MoeConfig(**sizes, **SHARED, num_hidden_layers=count)
    config._experts_implementation = "grouped_mm"
    config._attn_implementation = "sdpa"
    with torch.device(run.device):
        layers = Layers(Qwen3MoeModel(config).to(BF16)).train()
    with torch.no_grad():
        for parameter in layers.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return layers


def with_memory_of(layers, like):
    """Parameters of its own in the memory of another one's: casts are held by parameters."""
    for (_, module), (_, other) in zip(layers.named_modules(), like.named_modules(), strict=True):
        for name, parameter in other.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(parameter.detach()))
    return layers


class Way:
    """How the layers compute."""

    def __init__(self, name, layers, handle=None, casts=False):
        self.name, self.layers, self.call = name, layers, layers
        self.handle, self.after = handle, handle.casts if casts else None
        self.parameters = list(layers.parameters())

    def compiled(self):
        way = Way(f"{self.name}, compiled", self.layers, self.handle, self.after is not None)
        way.call = torch.compile(self.layers, dynamic=False)
        return way

    @property
    def is_ours(self):
        return self.name.startswith("Octofold")

    def step(self, x, dy):
        y = self.call(x)
        gradients = torch.autograd.grad(y, [x, *self.parameters], dy)
        if self.after is not None:
            self.after()
        # The kept y must not keep the leaves of its graph: they remember the stream of their
        # first backward, which none can then capture on another.
        return y.detach(), gradients


def ways(options, run):
    """BF16 first. What holds casts stays where it is for the whole run."""
    sizes = LAYERS if run.on_gpu else TINY
    plain = new_layers(options.layers, sizes, run)
    casting, holding = (
        with_memory_of(new_layers(options.layers, sizes, run), plain) for _ in range(2)
    )
    for layers in (casting, holding):
        for convert in ("convert_experts", "convert", "convert_norms", "convert_rotary"):
            report = getattr(octofold.nn, convert)(layers)
            if layers is holding:
                print(report)
    handle = octofold.nn.cast_after_step(torch.optim.SGD(holding.parameters(), 0.0), holding)
    return [
        Way("BF16", plain),
        Way("Octofold", casting),
        Way("Octofold, behind", holding, handle, True),
        Way("Octofold, held", holding),
    ]


def error_of(found, expected):
    """‖found − expected‖ / ‖expected‖ of many tensors as one; by slices, which are small."""
    off = norm = 0.0
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one.detach().split(16), other.detach().split(16), strict=True):
            off += float((a.float() - b.float()).square().sum())
            norm += float(b.float().square().sum())
    return (off / norm) ** 0.5


class Expected:
    """The output and the gradients of BF16."""

    def __init__(self, way, x, dy):
        self.y, self.gradients = way.step(x, dy)

    def errors(self, y, gradients):
        return {
            "y": error_of([y], [self.y]),
            "gradients": error_of(gradients, self.gradients),
            "dx": error_of(gradients[:1], self.gradients[:1]),
        }


def inputs(shape, run, sizes):
    torch.manual_seed(1)
    x = torch.randn(*shape, sizes["hidden_size"], device=run.device).to(BF16)
    return x.requires_grad_(), torch.randn_like(x) * 1e-3


def measure_steps(run, section, case, chosen, x, dy, expected):
    def builds():
        for kind, method in {"": GRAPH, ", called": WALL}.items():
            for way in chosen:

                def make(way=way, method=method):
                    call = partial(way.step, x, dy)
                    errors = partial(lambda call: expected.errors(*call()), call)
                    return Implementation([call], errors, LIMIT, method=method)

                yield Build(f"{way.name}{kind}", make, way.is_ours)

    def beside(name):
        compiled = ", compiled" if "compiled" in name else ""
        return f"BF16{compiled}{', called' if name.endswith('called') else ''}"

    measure_builds(run, section, case, builds(), beside)


def add_options(parser):
    add = parser.add_argument
    add("--layers", type=int)
    add("--tokens", nargs="+", help="of a sequence, or sequences x tokens")
    add_choices(parser, "--only", ("eager", "compiled"))


def cases(run):
    """The ways, an input's shape, and whether all is compiled."""
    transformers.logging.set_verbosity_error()
    torch._dynamo.config.recompile_limit = 64
    options = run.options
    options.layers = options.layers or (4 if run.on_gpu else 2)
    every = ways(options, run)
    for text in options.tokens or (["8192"] if run.on_gpu else ["2x24"]):
        shape = tuple(map(int, text.split("x")))
        for kind in options.only:
            yield every, shape if len(shape) == 2 else (1, *shape), kind


def measure(run, case):
    every, shape, kind = case
    x, dy = inputs(shape, run, LAYERS if run.on_gpu else TINY)
    expected = Expected(every[0], x, dy)
    chosen = [way.compiled() for way in every] if kind == "compiled" else every
    measure_steps(run, kind, f"{shape[0]} x {shape[1]} tokens", chosen, x, dy, expected)
