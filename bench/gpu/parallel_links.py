"""Exchanges between the GPUs of a host, beside what `octofold plan-parallel` reckons of them:

    torchrun --nproc-per-node 2 bench/gpu/parallel_links.py links.jsonl
    torchrun --nproc-per-node 2 bench/gpu/parallel_links.py --sections exchanges
    torchrun --nproc-per-node 2 bench/gpu/parallel_links.py tiny.jsonl --rounds 2     on a CPU

    octofold plan-parallel --model llama-3-70b --gpus 8 --links links.jsonl

Sections:
    exchanges   all-gather, reduce-scatter, all-reduce and all-to-all by NCCL, and a copy engine
                that fetches from the next rank's symmetric memory, of 64 KiB to 1 GiB; and for each
                kind the rate and the latency that fit best, as plan-parallel takes them
    transfers   exchanges of layers: weights by FSDP (Llama-8B), x of 8192 x 8192 in a tensor group,
                8192 tokens of DeepSeek-V3 to their experts. A collective of as many bytes; and for
                x also codes and scales as octofold.distributed gathers them
    contention  an FP8 product of 8192³ and exchanges, alone and beside each other: what each loses.
                On a CPU one comes behind the other

Columns:
    received  MB that a rank receives, by plan-parallel's formulas: of a gather (n - 1) / n of the
              whole
    µs        the median of rounds, of the slowest rank; ±: half of what lies between the quartiles
    GB/s      received bytes by that time, each way
    model     µs by plan-parallel, with the links that it assumes
    fitted    the same with the links that were fitted here
    ratio     µs over those of the model, or of the fitted one
    speed     over that alone

The fit has the least squares of relative errors. Where the latency is 0 noise left nothing of it.
Each rank fills its part with numbers of its own, and all that comes is compared; exit code 1 if
anything was wrong. Without GPUs everything goes by gloo, over tiny sizes.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import octofold
import torch
import torch.distributed as dist
from common.ranks import DEVICE, ON_GPU, Call, Report, Times, interleaved, ranks
from common.run import at_least_two
from link_exchanges.contention import measure_contention
from link_exchanges.exchanges import ALL_GATHER, ALL_TO_ALL, EXCHANGES, Kind, Memory, Prepared
from octofold._ranks.ranks import ranks_of
from octofold._ranks.wire import gathered_rows
from octofold_tool.parallel import transfers
from octofold_tool.parallel.links import KINDS, Exchange, Group, Link, Links, links_of
from octofold_tool.parallel.measured_links import SECTION, Sample, fitted
from octofold_tool.parallel.models import load_model, model_of
from octofold_tool.parallel.ways import BF16, FP8, Way

SECTIONS = ("exchanges", "transfers", "contention")
SMALLEST, LARGEST = 1 << 16, 1 << (30 if ON_GPU else 20)
FACTOR = 4
TOKENS = 8192 if ON_GPU else 64
PRODUCT, GATHERED = (8192, 1 << 28) if ON_GPU else (128, 1 << 16)
LLAMA_8B = {
    "hidden_size": 4096 if ON_GPU else 256,
    "intermediate_size": 14336 if ON_GPU else 896,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
ALIGNED = 256  # bytes
LEAD = 50.0  # µs for each call in a row, which is more than the host takes to queue one


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("results", type=Path, nargs="?", help="a file, to which lines of JSON are appended")
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--rounds", type=at_least_two, default=9)
    options = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        parser.error("expected two processes or more: torchrun --nproc-per-node 2 ...")
    return options


def timed(calls: Mapping[str, Call], rounds: int, bytes_: int) -> dict[str, Times]:
    """So many in a row that a sample is some milliseconds."""
    repeats = 40 if bytes_ < 1 << 22 else 10 if bytes_ < 1 << 26 else 4
    if not ON_GPU:
        repeats = 2
    return interleaved(calls, rounds, repeats, repeats * LEAD)


def report_times(
    report: Report,
    section: str,
    name: str,
    times: Times,
    reckoned: Mapping[str, Exchange],
    **values: float,
) -> None:
    """A line: what a rank receives, its times, and those that are reckoned, by column."""
    received = next(iter(reckoned.values())).nvlink_bytes
    spread = 50 * (times.high - times.low) / times.median
    rate = 1e6 * received / times.median
    microseconds = {column: 1e6 * exchange.seconds for column, exchange in reckoned.items()}
    others = "".join(f"{each:11.1f}{times.median / each:8.2f}" for each in microseconds.values())
    report.line(
        f"{name:<34}{1e-6 * received:10.3f}{times.median:11.1f}{spread:5.0f}%"
        f"{1e-9 * rate:9.1f}{others}"
    )
    found = {"received": received, "rate": rate, **microseconds, **times._asdict()}
    report.write(section, name, **values, **found)


def report_columns(report: Report, first: str, *others: str) -> None:
    reckoned = "".join(f"{column:>11}{'ratio':>8}" for column in others)
    report.line(f"\n{first:<34}{'received':>10}{'µs':>11}{'±':>6}{'GB/s':>9}{reckoned}")


def measure_exchanges(
    report: Report, memory: Memory, links: Links, rounds: int
) -> dict[str, list[Sample]]:
    """And the samples from which links are fitted."""
    group = Group(memory.ranks, 1)
    report_columns(report, "exchange", "model")
    samples: dict[str, list[Sample]] = {}
    bytes_ = SMALLEST
    while bytes_ <= LARGEST:
        calls = {
            kind.name: checked(report, kind.name, kind.prepare(memory, bytes_))
            for kind in EXCHANGES
        }
        found = timed(calls, rounds, bytes_)
        for kind in EXCHANGES:
            times, reckoned = found[kind.name], kind.reckon(links, group, bytes_)
            report_times(report, "exchange", kind.name, times, {"model": reckoned}, bytes=bytes_)
            sample = (reckoned.nvlink_bytes, kind.steps(group), 1e-6 * times.median)
            samples.setdefault(kind.link, []).append(sample)
        bytes_ *= FACTOR
    return samples


def checked(report: Report, name: str, prepared: Prepared) -> Call:
    """At once: the next exchange takes the same memory."""
    prepared.call()
    report.require(prepared.is_right(), name)
    return prepared.call


def fit_links(report: Report, samples: Mapping[str, list[Sample]]) -> dict[str, Link]:
    """Printed as plan-parallel takes them, and written as it reads them."""
    report.line("\nfitted, as arguments of plan-parallel")
    fits = {name: fitted(each) for name, each in samples.items()}
    for name, link in fits.items():
        errors = [
            abs((bytes_ / link.rate + steps * link.latency) / seconds - 1)
            for bytes_, steps, seconds in samples[name]
        ]
        mean, most = sum(errors) / len(errors), max(errors)
        report.line(
            f"{name:<16} --nvlink {2e-9 * link.rate:<7.4g} --nvlink-latency"
            f" {1e6 * link.latency:<7.3g} {1e-9 * link.rate:.1f} GB/s each way;"
            f" off by {mean:.0%}, {most:.0%} at most"
        )
        values = {**dataclasses.asdict(link), "mean_error": mean, "most_error": most}
        report.write(SECTION, name, **values)
    return fits


class Transfer(NamedTuple):
    """A named exchange: what a plan reckons over links, and what carries it out."""

    name: str
    reckon: Callable[[Links], Exchange]
    kind: Kind

    def whole(self, links: Links, size: int) -> int:
        """Bytes of the buffer, of which a part is there already: parts that NCCL likes."""
        part = self.reckon(links).nvlink_bytes / (size - 1)
        return max(1, round(part / ALIGNED)) * ALIGNED * size


def transfers_of(size: int) -> list[Transfer]:
    """Between so many ranks."""
    small, wide = model_of(LLAMA_8B, "llama-3-8b"), load_model("llama-3-70b")
    experts = load_model("deepseek-v3")
    found = []
    for name, way in (("codes", FP8), ("BF16", BF16)):

        def weights(links: Links, way: Way = way) -> Exchange:
            return transfers.gather_of_weights(small, way, links, size)

        def inputs(links: Links, way: Way = way) -> Exchange:
            return transfers.gather_of_inputs(wide, way, links, size, TOKENS)

        def dispatch(links: Links, way: Way = way) -> Exchange:
            return transfers.dispatch_of_tokens(experts, way, links, size, TOKENS)

        found += [
            Transfer(f"FSDP: weights, {name}", weights, ALL_GATHER),
            Transfer(f"TP: x, {name}", inputs, ALL_GATHER),
        ]
        if experts.routing and experts.routing.groups % size == 0:
            found.append(Transfer(f"EP: dispatch, {name}", dispatch, ALL_TO_ALL))
    return sorted(found)


def measure_transfers(
    report: Report,
    memory: Memory,
    named: list[Transfer],
    links: Mapping[str, Links],
    rounds: int,
) -> None:
    """Beside what is reckoned over each of the links, by column."""
    calls: dict[str, Call] = {}
    reckon: dict[str, Callable[[Links], Exchange]] = {}
    for name, reckoned, kind in named:
        whole = Transfer(name, reckoned, kind).whole(links["model"], memory.ranks)
        calls[name] = checked(report, name, kind.prepare(memory, whole))
        reckon[name] = reckoned
        if name == "TP: x, codes":
            apart = f"{name}, then scales"
            calls[apart], reckon[apart] = rows_gathered(report), reckoned
    found = timed(calls, rounds, 1 << 26)
    report_columns(report, "transfer", *links)
    for name, times in found.items():
        reckoned_over = {column: reckon[name](each) for column, each in links.items()}
        report_times(report, "transfer", name, times, reckoned_over)


def rows_gathered(report: Report) -> Call:
    """As octofold.distributed gathers rows: codes, then scales, which are placed anew."""
    group = ranks_of("parallel_links", "group", None)
    columns = load_model("llama-3-70b").hidden
    shard = octofold.quantize(torch.randn(TOKENS // group.size, columns, device=DEVICE), "1x128")
    call = partial(gathered_rows, "parallel_links", shard, group, 0, same_scales=False)
    begin = group.rank * shard.shape[0]
    report.require(call()[begin : begin + shard.shape[0]].equals(shard), "codes and scales")
    return call


def main() -> None:
    options = parsed()
    with ranks(options.results) as report:
        size = dist.get_world_size()
        links = {"model": links_of(gpus_per_host=size)}
        named = transfers_of(size)
        memory = Memory(max(LARGEST, *(each.whole(links["model"], size) for each in named)))
        if "exchanges" in options.sections:
            samples = measure_exchanges(report, memory, links["model"], options.rounds)
            fits = fit_links(report, samples)
            measured = {kind: fits[kind] for kind in KINDS}
            links["fitted"] = dataclasses.replace(links["model"], measured=measured)
        if "transfers" in options.sections:
            measure_transfers(report, memory, named, links, options.rounds)
        if "contention" in options.sections:
            report.line()
            measure_contention(report, memory, PRODUCT, GATHERED, options.rounds)


if __name__ == "__main__":
    main()
