"""A model of transformers with Llama-8B's layers: prefill, decoding and a step of LoRA, in BF16, by
transformers' own FP8 and by octofold.integrations.transformers.

    python bench/gpu/run.py transformers_model RESULTS.jsonl [--layers 12]
        [--only prefill decode lora compiled] [--finegrained FOLDER]

The model has random weights, is saved once, and each implementation loads it by from_pretrained().
Prefill: a sequence of 8192 tokens, the last token's logits; "compiled": by torch.compile, which
takes minutes. Decoding: a token of each of 1 to 64 sequences, without the cache, whose attention is
the same for all; in a CUDA graph, and "called" as Python calls it. LoRA: rank 16 over every linear
layer, forward and backward of 4096 tokens.

--finegrained: the package of kernels-community/finegrained-fp8, with which transformers computes
where there is no DeepGEMM; without it transformers' FP8 is left out.
"""

import importlib.util
import sys
import tempfile
from functools import partial
from pathlib import Path

import peft
import torch
import transformers
from common.measure import Build
from common.measure import measure as measure_builds
from octofold._timing import EVENTS, GRAPH, WALL
from octofold.integrations.transformers import OctofoldConfig
from octofold_tool.gpu.measuring import Implementation, relative_error
from transformers.integrations import finegrained_fp8

ROUNDS, SECONDS = 7, 400
CASE_SECONDS = 600.0  # compilations take minutes
BF16 = torch.bfloat16
LAYERS = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32768,
}
TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}
# Limits of logits' and adapters' gradients' errors, over BF16's norm: each layer adds its casts'.
LOGITS, GRADIENTS = 0.2, 0.35


def options_of(finegrained):
    """Returns the options that each implementation gives to from_pretrained()."""
    options = {"BF16": {}}
    if finegrained is not None:
        name = "finegrained_fp8"
        places = [str(finegrained)]
        spec = importlib.util.spec_from_file_location(
            name, finegrained / "__init__.py", submodule_search_locations=places
        )
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        # Its loader does the same, but asks the hub.
        finegrained_fp8._FINEGRAINED_FP8 = finegrained_fp8.FineGrainedFP8(
            module.matmul_2d, module.matmul_batched, module.matmul_grouped
        )
        options["transformers FP8"] = {"quantization_config": transformers.FineGrainedFP8Config()}
    for name, compute in (("Octofold", "auto"), ("Octofold, weight-only", "weight-only")):
        options[name] = {"quantization_config": OctofoldConfig(compute=compute)}
    return options


def saved_model(folder, layers, sizes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.LlamaForCausalLM(config).to(BF16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)


def loaded(folder, options, run):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=BF16, device_map={"": run.device}, **options
    )
    return model.requires_grad_(False).eval()


def is_ours(name):
    return name.startswith("Octofold")


def forward(model, tokens):
    return model(tokens, use_cache=False, logits_to_keep=1).logits


@torch.no_grad()
def measure_forward(run, section, shape, models, methods):
    tokens = torch.randint(0, models["BF16"].config.vocab_size, shape, device=run.device)
    expected = forward(models["BF16"], tokens)

    def builds():
        for kind, method in methods.items():
            for name, model in models.items():

                def make(model=model, method=method):
                    call = partial(forward, model, tokens)
                    return Implementation(
                        [call], lambda: relative_error(call(), expected), LOGITS, method=method
                    )

                yield Build(f"{name}{kind}", make, is_ours(name))

    def beside(name):
        return "BF16, called" if name.endswith("called") else "BF16"

    case = f"{shape[0]} x {shape[1]} tokens"
    measure_builds(run, section, case, builds(), beside, sequences=shape[0], tokens=shape[1])


def measure_lora(run, tokens, names, folder, ways):
    """One model after another is in memory with its graph, but times are taken in turns."""
    vocabulary = TINY["vocab_size"] if not run.on_gpu else LAYERS["vocab_size"]
    ids = torch.randint(0, vocabulary, (1, tokens), device=run.device)
    expected = {}

    def adapted(name):
        model = loaded(folder, ways[name], run)
        config = peft.LoraConfig(r=16, lora_alpha=16, target_modules="all-linear")
        if not is_ours(name) and name != "BF16":
            config.target_modules = r".*_proj"
        model = peft.get_peft_model(model, config, autocast_adapter_dtype=False).to(BF16).train()
        torch.manual_seed(1)
        for key, parameter in sorted(model.named_parameters()):
            if "lora_" in key:
                values = torch.randn(parameter.shape, device=run.device) * 0.02
                parameter.data = values.to(parameter.dtype)
        return model

    def builds():
        for name in names:

            def make(name=name):
                model = adapted(name)
                trained = [p for p in model.parameters() if p.requires_grad]

                def step():
                    for parameter in trained:
                        parameter.grad = None
                    model(ids, labels=ids, use_cache=False).loss.backward()

                def error():
                    step()
                    gradient = torch.cat([p.grad.flatten().float() for p in trained])
                    expected.setdefault("BF16", gradient)
                    return relative_error(gradient, expected["BF16"])

                return Implementation([step], error, GRADIENTS, method=EVENTS)

            yield Build(name, make, is_ours(name))

    measure_builds(run, "lora", f"{tokens} tokens", builds(), "BF16", tokens=tokens)


def add_options(parser):
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--finegrained", type=Path)
    parser.add_argument("--only", nargs="+", default=("prefill", "decode", "lora"))


def cases(run):
    """Calls that measure. LoRA comes first, with one model after another in memory."""
    transformers.logging.set_verbosity_error()
    only = run.options.only
    with tempfile.TemporaryDirectory() as folder:
        saved_model(folder, run.options.layers, LAYERS if run.on_gpu else TINY)
        ways = options_of(run.options.finegrained)
        if "lora" in only:
            yield partial(measure_lora, run, 4096 if run.on_gpu else 16, list(ways), folder, ways)
        models = {name: loaded(folder, of_name, run) for name, of_name in ways.items()}
        prefill = (1, 8192 if run.on_gpu else 24)
        if "prefill" in only:
            yield partial(measure_forward, run, "prefill", prefill, models, {"": EVENTS})
        if "compiled" in only:
            torch._dynamo.config.recompile_limit = 64
            compiled = {name: torch.compile(model) for name, model in models.items()}
            yield partial(measure_forward, run, "compiled", prefill, compiled, {"": EVENTS})
        for sequences in (1, 4, 16, 64) if "decode" in only else ():
            methods = {"": GRAPH, ", called": WALL}
            yield partial(measure_forward, run, "decode", (sequences, 1), models, methods)


def measure(run, case):
    case()
