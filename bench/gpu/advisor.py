"""The advisor's plans beside plain rules, in time and error of whole models:

    python bench/gpu/advisor.py advisor.jsonl
    python bench/gpu/advisor.py tiny.jsonl --device cpu        to try the script: no times

Two models in BF16, in plain torch, with random weights and outlier features: `llama`, four blocks
of hidden size 4096 with grouped heads and MLPs of two sizes, 4096 tokens, and a head; `dit`, twelve
blocks of hidden size 1152 with modulation by a vector, two images of 1024 tokens. Rules: every
linear layer by one recipe; torchao's thresholds on sizes (below) by the recipes that they are for.
For each rule the advisor is given the rule's own error as bound. All take turns, as CUDA graphs;
what each answers is checked: finite, the error that was measured before, a replay's answer that of
a call. Times are medians; every result goes to the JSON-lines file as it comes.

"predicted" is the advisor's time by its measurements of layers alone, "off" by how much the plan's
run differs from that (wanted: at most 5 %), "gain" the rule's time over the advisor's at no more
error.
"""

import json
import math
import sys
import time
from pathlib import Path

import octofold
import torch
from common.models import Attention, LlamaBlock
from common.run import Run, new_parser, print_table
from octofold._timing import Method, captured, timings
from octofold.models.advisor.advise import Advisor, ProgressSteps
from octofold.models.advisor.errors import in_place
from octofold.models.advisor.record import linears_of
from octofold.models.advisor.runs import answers, answers_error, evaluating, runs_of
from octofold.models.advisor.ways import WAYS, ways_of
from torch.nn.functional import silu

EVENTS = Method("events", rest=0.0, passes=1)
RECIPES = ("blockwise", "rowwise", "tensorwise")
DEFAULT_WAYS = [*RECIPES, "weight-only-128x128", "cast"]


def torchao_tensorwise(out_features: int, in_features: int) -> bool:
    """torchao 0.18, torchao.float8.float8_linear_utils._auto_filter_for_tensorwise (BSD-3): which
    layers its rule converts."""
    fits = in_features % 16 == 0 and out_features % 16 == 0
    return fits and not (in_features <= 4096 and out_features <= 1024)


def torchao_rowwise(out_features: int, in_features: int) -> bool:
    """The same place, _auto_filter_for_rowwise."""
    fits = in_features % 16 == 0 and out_features % 16 == 0
    small = out_features <= 2048 or in_features <= 1024
    return fits and not small and not (out_features <= 4096 and in_features <= 2048)


RULES = {
    **{f"all {recipe}": (recipe, lambda out_features, in_features: True) for recipe in RECIPES},
    "torchao rowwise": ("rowwise", torchao_rowwise),
    "torchao tensorwise": ("tensorwise", torchao_tensorwise),
}


class Llama(torch.nn.Module):
    def __init__(self, width, heads, groups, hiddens, words):
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(LlamaBlock(width, heads, groups, h) for h in hiddens)
        self.norm = torch.nn.RMSNorm(width)
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class DitBlock(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads, heads, causal=False)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.modulation = torch.nn.Linear(width, 6 * width)

    def forward(self, x, condition):
        size = x.shape[-1:]
        parts = self.modulation(silu(condition))[:, None].chunk(6, dim=-1)
        y = torch.nn.functional.layer_norm(x, size) * (1 + parts[0]) + parts[1]
        x = x + parts[2] * self.attention(y)
        y = torch.nn.functional.layer_norm(x, size) * (1 + parts[3]) + parts[4]
        y = self.down(torch.nn.functional.gelu(self.up(y), approximate="tanh"))
        return x + parts[5] * y


class Dit(torch.nn.Module):
    def __init__(self, width, heads, blocks):
        super().__init__()
        self.patch = torch.nn.Linear(16, width)
        self.condition = torch.nn.Linear(256, width)
        self.blocks = torch.nn.ModuleList(DitBlock(width, heads) for _ in range(blocks))
        self.out = torch.nn.Linear(width, 16)

    def forward(self, x, t):
        x, condition = self.patch(x), self.condition(t)
        for block in self.blocks:
            x = block(x, condition)
        return self.out(torch.nn.functional.layer_norm(x, x.shape[-1:]))


def filled(model, device):
    """With normal weights, of which one in 64 inputs of a layer is eight times as large: outliers,
    as trained models have them."""
    model = model.to(device, torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            parameter.data[:, ::64] *= 8
    return model.eval()


def models_of(device):
    """Names, models, inputs."""
    tiny = device.type == "cpu"
    with torch.device("meta"):
        if tiny:
            shapes = Llama(256, 4, 2, (512, 384), 256), Dit(128, 4, 2)
        else:
            shapes = (
                Llama(4096, 32, 8, (14336, 11008, 14336, 11008), 32000),
                Dit(1152, 16, 12),
            )
    llama, dit = (filled(model.to_empty(device=device), device) for model in shapes)
    for module in [*llama.modules(), *dit.modules()]:
        if isinstance(module, torch.nn.RMSNorm):
            torch.nn.init.ones_(module.weight)
        elif isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.zeros_(module.bias)
    tokens = 64 if tiny else 4096
    yield "llama", llama, (torch.randint(llama.embed.num_embeddings, (1, tokens), device=device),)
    images = torch.randn(2, tokens // 4, 16, device=device), torch.randn(2, 256, device=device)
    yield "dit", dit, tuple(tensor.bfloat16() for tensor in images)


class Race:
    """A model, what the advisor measured of it, and contenders."""

    def __init__(self, name, model, inputs, run, ways):
        self.name, self.model, self.bench = name, model, run
        self.runs = runs_of("bench", inputs)
        linears, _ = linears_of(model)
        started = time.perf_counter()
        self.advisor = Advisor(model, self.runs, run.device, ways, ProgressSteps(None, 0))
        self.advisor.measure(linears, effects=True)
        self.seconds = time.perf_counter() - started
        self.expected = answers(self.runs, model)
        self.notes = self.advisor.notes

    def rule(self, recipe, converts):
        """The layers that a rule converts, made."""
        return {
            id(c.record.linear): WAYS[recipe].make(c.record.linear)
            for c in self.advisor.candidates
            if converts(c.record.linear.out_features, c.record.linear.in_features)
        }

    def error(self, new):
        with in_place(self.model, new) as changed:
            found = answers(self.runs, changed)
        error = answers_error(found, self.expected)
        if not math.isfinite(error) or error > 1:
            raise RuntimeError(f"{self.name}: an error of {error}: wrong")
        return error

    def sampler(self, new):
        """A CUDA graph of the model with these layers, whose replay is checked."""
        with in_place(self.model, new) as changed:
            wanted = self.runs[0](changed)
            replay = captured(lambda: self.runs[0](changed))
        found = replay()
        if answers_error([[found]], [[wanted]]) > 1e-2:
            raise RuntimeError(f"{self.name}: a replay answers something else")
        return EVENTS.sampler([replay])

    def saved(self, found):
        """Seconds that the picks gain by the measurements of layers alone."""
        total = 0.0
        for candidate, choice in zip(self.advisor.candidates, found.picked, strict=True):
            options = {option.way: option for option in candidate.options}
            if choice is not None:
                total += options["own"].seconds - options[choice.way].seconds
        return total

    def run(self):
        """A line for each rule."""
        timed = self.bench.on_gpu
        for name, (recipe, converts) in RULES.items():
            new = self.rule(recipe, converts)
            line = {"model": self.name, "rule": name, "layers": len(new)}
            line["error"] = self.error(new) if new else 0.0
            bound = max(line["error"], 1e-3)
            found = self.advisor.search("time" if timed else "bytes", bound * 1.0001, None)
            mine = self.advisor.modules(found.picked)
            line |= {"advisor_layers": len(mine), "advisor_error": found.error}
            if found.error > bound * 1.0001:
                raise RuntimeError(f"{self.name}: the advisor's plan is beyond its bound")
            if timed:
                contenders = {"own": {}, "rule": new, "advisor": mine}
                samplers = {key: self.sampler(modules) for key, modules in contenders.items()}
                times = timings(samplers, self.bench.rounds)
                own, rule, planned = (time.microseconds * 1e-6 for time in times.values())
                predicted = own - self.saved(found)
                line |= {
                    "own_ms": own * 1e3,
                    "rule_ms": rule * 1e3,
                    "advisor_ms": planned * 1e3,
                    "predicted_ms": predicted * 1e3,
                    "off": predicted / planned - 1,
                    "gain": rule / planned,
                }
            ways = {}
            for choice in found.picked:
                if choice is not None:
                    ways[choice.way] = ways.get(choice.way, 0) + 1
            self.bench.record("advisor", **line, ways=ways)
            yield line


COLUMNS = ("own_ms", "rule_ms", "advisor_ms", "predicted_ms", "off", "gain")


def show(lines):
    rows = [
        [
            f"{line['model']} {line['rule']}",
            f"{line['layers']}",
            f"{line['error']:.4f}",
            f"{line['advisor_error']:.4f}",
            *(f"{line[column]:.3f}" if column in line else "" for column in COLUMNS),
        ]
        for line in lines
    ]
    print_table("Rules and plans", ["", "layers", "error", "the plan's", *COLUMNS], rows)


def report(name, model, inputs, bound, options, run):
    options.reports.mkdir(parents=True, exist_ok=True)
    plan = octofold.models.advise(model, inputs, max_error=bound, ways=options.ways)
    plan.save(options.reports / f"{name}.json")
    (options.reports / f"{name}.html").write_text(
        octofold.models.html_report(plan), encoding="utf-8"
    )
    print(plan.report())
    run.record("plan", model=name, plan=json.loads(plan.to_json())["whole"])


def main():
    parser = new_parser(__doc__, rounds=11, seconds=500)
    parser.add_argument("--models", nargs="+", choices=("llama", "dit"), default=["llama", "dit"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=DEFAULT_WAYS)
    parser.add_argument("--reports", type=Path, help="a folder for the reports of both models")
    options = parser.parse_args()
    lines = []
    with Run(options) as run:
        run.device = torch.device(options.device, *([0] if run.on_gpu else []))
        chosen = (case for case in models_of(run.device) if case[0] in options.models)
        for name, model, inputs in run.cases(chosen):
            with evaluating(model, run.device):
                race = Race(name, model, inputs, run, ways_of("", options.ways))
                print(f"{name}: measured in {race.seconds:.1f} s; {race.notes}")
                found = list(race.run())
            show(found)
            lines += found
            if options.reports is not None:
                report(name, model, inputs, found[0]["error"], options, run)
    if lines:
        show(lines)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
