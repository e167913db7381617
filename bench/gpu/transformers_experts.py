"""Layers of Qwen3-30B-A3B as transformers has them, forward and backward: in BF16 by transformers'
best, and by octofold.nn.convert(), convert_experts(), convert_norms() and convert_rotary().

    python bench/gpu/transformers_experts.py RESULTS.jsonl [--layers 4] [--tokens 8192 2x4096]
        [--only eager compiled parts] [--attention default cuDNN]

Random weights, BF16 parameters, attention by scaled_dot_product_attention() without a mask, experts
by transformers' "grouped_mm". The layers, their last norm and the rotary embedding are called as
Qwen3MoeModel calls them, but without the mask that it makes where it cannot look at positions
(under torch.compile, in a CUDA graph). A step is forward and the gradients of all parameters and of
the input.

By name alone: the step in a CUDA graph, or by events where none can be captured; "called": as
Python calls it, with what that takes of the host. "own rotary": without convert_rotary(); "own
norms": without convert_norms() too. Octofold casts weights in each step; "behind": by
cast_after_step(), with the casts that an optimizer's step adds; "held": without these, as most of
several micro-batches.

parts: what each kind of module takes of a step, by torch's profiler.
"""

import sys
from contextlib import contextmanager, nullcontext
from functools import partial

import octofold
import torch
import transformers
from common.measure import Build, Implementation, measure
from common.parts import REST, shares_of
from common.run import Run, new_parser, print_table
from octofold._timing import GRAPH, WALL
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeModel

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
BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}
# Relative to BF16's, of the output and of all gradients. Casts alone lose 2.6 % of each product;
# beside them a token whose experts are close goes to another one, of which nothing is the same.
LIMIT = 0.35
KERNELS_SHOWN = 30


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
    made = [Way("BF16", plain)]
    for held, own in ((False, "norms"), (False, "rotary"), (False, ""), (True, "")):
        layers = with_memory_of(new_layers(options.layers, sizes, run), plain)
        reports = [octofold.nn.convert_experts(layers), octofold.nn.convert(layers)]
        if own != "norms":
            reports.append(octofold.nn.convert_norms(layers))
        if not own:
            reports.append(octofold.nn.convert_rotary(layers))
        if not held:
            made.append(Way(f"Octofold, own {own}" if own else "Octofold", layers))
            continue
        for report in reports:
            print(report)
        handle = octofold.nn.cast_after_step(torch.optim.SGD(layers.parameters(), 0.0), layers)
        made += [Way("Octofold, behind", layers, handle, True), Way("Octofold, held", layers)]
    return made


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

    measure(run, section, case, builds(), beside)


KINDS = {
    "experts": ("Qwen3MoeExperts", "Experts"),
    "routing": ("Qwen3MoeTopKRouter",),
    "norms": ("Qwen3MoeRMSNorm",),
    "linears": ("Linear",),
    "rotary, copies": ("Qwen3MoeAttention",),
    "rotary embedding": ("Qwen3MoeRotaryEmbedding",),
    "residuals": ("Qwen3MoeDecoderLayer",),
}
CASTS = "casts of weights"


def part_of(module):
    names = [kind.__name__ for kind in type(module).__mro__]
    return next((part for part, own in KINDS.items() if any(n in own for n in names)), None)


def finer(part, around):
    """Attention itself, apart from what is done to its operands."""
    if part == "rotary, copies" and any("ttention" in name for name in around):
        return "attention"
    return part


def measure_parts(run, case, chosen, x, dy):
    found = {}
    for way in chosen:
        step = partial(way.step, x, dy)
        step()
        found[way.name] = shares = shares_of(step, way.layers, part_of, finer, run.on_gpu)
        if way.after is not None and REST in shares:
            shares[CASTS] = shares.pop(REST)  # nothing else is outside of the modules
        by_kernel = [
            (microseconds, part, name)
            for part, share in shares.items()
            for name, microseconds in share.by_name.items()
        ]
        first = sorted(by_kernel, reverse=True)[:KERNELS_SHOWN]
        facts = {part: [share.microseconds, share.kernels] for part, share in shares.items()}
        run.record("parts", case=case, name=way.name, parts=facts, kernels=first)
        rows = [[name[:90], part, f"{time:.0f}"] for time, part, name in first]
        print_table(f"{way.name}: kernels", ["", "part", "µs"], rows)
    names = list(found)
    total = {name: sum(share.microseconds for share in found[name].values()) for name in names}
    rows = []
    for part in (*KINDS, "attention", CASTS, REST):
        shares = [found[name].get(part) for name in names]
        if any(shares):
            cells = [
                f"{share.microseconds:.0f} {share.microseconds / total[name]:.1%} {share.kernels}"
                if share
                else "-"
                for name, share in zip(names, shares, strict=True)
            ]
            rows.append([part, *cells])
    rows.append(["all", *[f"{total[name]:.0f}" for name in names]])
    print_table(f"parts {case}: µs, share, kernels", ["", *names], rows)


@contextmanager
def attention_by(name):
    with nullcontext() if name == "default" else sdpa_kernel(BACKENDS[name]):
        yield


def measure_case(run, options, text, attention, every):
    shape = tuple(map(int, text.split("x")))
    shape = (1, *shape) if len(shape) == 1 else shape
    x, dy = inputs(shape, run, LAYERS if run.on_gpu else TINY)
    case = f"{shape[0]} x {shape[1]} tokens, attention {attention}"
    with attention_by(attention):
        expected = Expected(every[0], x, dy)
        if "eager" in options.only:
            measure_steps(run, "eager", case, every, x, dy, expected)
            run.release()
        if "compiled" in options.only:
            # Compiled norms and rotary embeddings are the models' own anyway.
            compiled = [way.compiled() for way in every if ", own " not in way.name]
            measure_steps(run, "compiled", case, compiled, x, dy, expected)
            run.release()
        if "parts" in options.only:
            measure_parts(run, case, every[:5], x, dy)


def main():
    parser = new_parser(__doc__, rounds=7, seconds=540)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", nargs="+", help="of a sequence, or sequences x tokens")
    parser.add_argument("--only", nargs="+", default=("eager", "compiled", "parts"))
    parser.add_argument("--attention", nargs="+", default=("default",))
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch._dynamo.config.recompile_limit = 64
    with Run(options) as run:
        options.layers = options.layers or (4 if run.on_gpu else 2)
        every = ways(options, run)
        for text in options.tokens or (["8192"] if run.on_gpu else ["2x24"]):
            for attention in options.attention:
                run.check_time()
                measure_case(run, options, text, attention, every)
                run.release()
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
