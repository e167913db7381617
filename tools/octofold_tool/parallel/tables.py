"""What a plan prints and writes."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..report import console, print_table
from .exchanges import Traffic
from .links import Exchange, Links
from .steps import Planned, Planner, Step, ranked
from .ways import BF16, FP8, FP8_PRODUCTS, WAYS

SHORT = {FP8: "FP8", FP8_PRODUCTS: "FP8 prod.", BF16: "BF16"}


def show(
    planner: Planner, planned: Sequence[Planned], best: Sequence[Planned], left_out: Counter[str]
) -> None:
    output = console()
    output.print(headline(planner), markup=False)
    output.print(fitting(planner, planned), markup=False)
    show_schemes(planner, best)
    first = best[0]
    show_parts(first)
    show_traffic(first)
    show_layers(first)
    for reason, times in left_out.most_common():
        output.print(f"Left out: {times}, {reason}", markup=False)


def headline(planner: Planner) -> str:
    model, links, given, rates = planner.model, planner.links, planner.settings, planner.rates
    return (
        f"{model.name}: {model.parameters / 1e9:.1f} billion parameters, "
        f"{model.active_parameters / 1e9:.1f} meet a token; {given.gpus} GPUs, "
        f"{links.gpus_per_host} a host; {inside_text(links)} GB/s each way inside, "
        f"{links.network / 1e9:g} between; {given.tokens} tokens a GPU and step, "
        f"sequences of {given.sequence}\n"
        f"Rates: {rates.machine}, {rates.date}"
    )


def inside_text(links: Links) -> str:
    """The rate; of measured links, each kind's."""
    if not links.measured:
        return f"{links.nvlink / 1e9:g}"
    return ", ".join(f"{link.rate / 1e9:.3g} ({kind})" for kind, link in links.measured.items())


def fitting(planner: Planner, planned: Sequence[Planned]) -> str:
    """How many schemes fit, and what BF16 could do at best."""
    limit = f"{planner.settings.memory / 1e9:g} GB"
    fit = sum(one.steps[FP8.name].fits for one in planned)
    text = f"{fit} of {len(planned)} schemes fit {limit}"
    if not fit:
        least = min(one.steps[FP8.name].memory.total for one in planned)
        return f"{text}: the least takes {least / 1e9:.1f}. By memory, not by time:"
    own = ranked(planned, BF16)[0]
    step = own.steps[BF16.name]
    if not step.fits:
        return f"{text}; none does in BF16"
    gain = step.seconds / ranked(planned, FP8)[0].steps[FP8.name].seconds
    return (
        f"{text}. BF16's own best: {own.scheme}, {step.seconds:.3f} s; FP8's best has "
        f"{gain:.2f} times its speed"
    )


def show_schemes(planner: Planner, best: Sequence[Planned]) -> None:
    columns = ["scheme", "GB", *(f"{SHORT[way]}\ns" for way in WAYS)]
    columns += ["× BF16", "tokens/s\na GPU", "of FP8's\npeak", "BF16: of\nits peak"]
    rows = []
    for one in best:
        steps = [one.steps[way.name] for way in WAYS]
        fp8, bf16 = steps[0], steps[-1]
        peaks = planner.rates.peak_fp8, planner.rates.peak_bf16
        rows.append(
            [
                str(one.scheme),
                f"{fp8.memory.total / 1e9:.1f}",
                *(f"{step.seconds:.3f}{'' if step.fits else ' !'}" for step in steps),
                f"{bf16.seconds / fp8.seconds:.2f}",
                f"{planner.settings.tokens / fp8.seconds:.0f}",
                *(
                    f"{planner.flops / step.seconds / peak:.0%}"
                    for step, peak in zip((fp8, bf16), peaks, strict=True)
                ),
            ]
        )
    print_table("Schemes, best first (!: more memory than there is)", columns, rows)


PARTS = {
    "products": "products",
    "casts": "casts",
    "attention": "attention",
    "elementwise": "elementwise",
    "optimizer": "optimizer",
    "tensor_exposed": "TP, not hidden",
    "experts_exposed": "EP, not hidden",
    "fsdp_exposed": "FSDP and sums, not hidden",
}


def show_parts(one: Planned) -> None:
    def cells(name: str) -> list[str]:
        return [f"{getattr(one.steps[way.name].parts, name) * 1e3:.0f}" for way in WAYS]

    columns = ["ms of a step", *(SHORT[way] for way in WAYS)]
    rows = [[label, *cells(name)] for name, label in PARTS.items()]
    rows = [row for row in rows if any(cell != "0" for cell in row[1:])]
    print_table(f"Time: {one.scheme}", columns, rows, ["all", *cells("total")])


def show_traffic(one: Planned) -> None:
    """Of FP8 and BF16, a step."""
    fp8, bf16 = (one.steps[way.name].traffic for way in (FP8, BF16))
    columns = ["GB that a GPU receives", "NVLink\nFP8", "\nBF16", "network\nFP8", "\nBF16"]
    columns += ["ms alone\nFP8", "\nBF16"]
    rows = [[kind.value, *pairs(fp8[kind], bf16[kind])] for kind in Traffic if kind in fp8]
    totals = [sum(each.values(), Exchange()) for each in (fp8, bf16)]
    if rows:
        print_table("Traffic of a step", columns, rows, ["all", *pairs(*totals)])


def pairs(fp8: Exchange, bf16: Exchange) -> list[str]:
    both = fp8, bf16
    return [
        *(f"{each.nvlink_bytes / 1e9:.2f}" for each in both),
        *(f"{each.network_bytes / 1e9:.2f}" for each in both),
        *(f"{each.seconds * 1e3:.0f}" for each in both),
    ]


def show_layers(one: Planned) -> None:
    """Of one layer of each kind and one micro batch, in FP8."""
    fp8, bf16 = (one.steps[way.name].layers for way in (FP8, BF16))
    columns = ["MB of one layer and micro batch", "NVLink\nFP8", "\nBF16", "network\nFP8", "\nBF16"]
    rows = [
        [
            f"{layer}: {kind.value}",
            *(f"{each[layer][kind].nvlink_bytes / 1e6:.1f}" for each in (fp8, bf16)),
            *(f"{each[layer][kind].network_bytes / 1e6:.1f}" for each in (fp8, bf16)),
        ]
        for layer in fp8
        for kind in Traffic
        if kind in fp8[layer]
    ]
    if rows:
        print_table("Traffic of a layer (sums over replicas: of a step)", columns, rows)


def document(
    planner: Planner, best: Sequence[Planned], left_out: Counter[str]
) -> Mapping[str, Any]:
    """JSON: bytes and seconds throughout."""
    model, given = planner.model, planner.settings
    return {
        "command": "plan-parallel",
        "model": {
            "name": model.name,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
        },
        "settings": dataclasses.asdict(given),
        "links": planner.links.document(),
        "flops": planner.flops,
        "left_out": dict(left_out),
        "schemes": [
            {
                "scheme": {**dataclasses.asdict(one.scheme), "replicas": one.scheme.replicas},
                "ways": {name: step_document(planner, step) for name, step in one.steps.items()},
            }
            for one in best
        ],
        "rates": planner.rates.document(),
    }


def step_document(planner: Planner, step: Step) -> Mapping[str, Any]:
    def traffic(exchanges: Mapping[Traffic, Exchange]) -> Mapping[str, Any]:
        return {kind.name.lower(): dataclasses.asdict(each) for kind, each in exchanges.items()}

    return {
        "seconds": step.seconds,
        "tokens_per_second": planner.settings.tokens / step.seconds,
        "flops_per_second": planner.flops / step.seconds,
        "fits": step.fits,
        "memory": {**dataclasses.asdict(step.memory), "total": step.memory.total},
        "parts": dataclasses.asdict(step.parts),
        "traffic": traffic(step.traffic),
        "layers": {name: traffic(exchanges) for name, exchanges in step.layers.items()},
    }
