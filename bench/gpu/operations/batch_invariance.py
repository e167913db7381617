"""Measures what it costs that rows do not depend on the rows beside them: calls with
batch_invariant=True beside the same calls without.

    python bench/gpu/run.py batch_invariance RESULTS.jsonl [--sections SECTION ...]
        [--rows M,M,...]

SECTION: gemm, weight-only or attention, of whose sequences M is the number. Results are checked
against FP32's, and the first row against a call of that row alone, to the bit. Last come tables of
the time with it over the time without.
"""

import math
from functools import partial

import octofold
import torch
from common.measure import ERROR_LIMITS, Build, geometric_mean
from common.measure import measure as measure_builds
from common.operands import LAYERS, calls_of, normal, scaled, sets_of
from common.run import add_choices, print_table, sizes, text_of
from octofold_tool.gpu.measuring import Implementation, poison, relative_error

ROUNDS, SECONDS = 7, 300

WITHOUT, WITH = "without", "batch_invariant"
ROWS = "1,8,16,32,64,128,256,512,1024,4096"
HEADS, KEY_HEADS, HEAD_SIZE = 32, 8, 128
SEQUENCES = ((1, 1024), (1, 8192), (1, 32768), (512, 8192), (4096, 4096))  # queries, keys
ATTENTION_LIMIT = 5e-3  # torch rounds its own result, and weights, too


def build(name, run, sets, product, expected, one, limit):
    """product(*operands, out); one: the first row of the operands, without `out`."""
    how = {"batch_invariant": name == WITH}
    *operands, out = sets[0]

    def error():
        poison(out)
        product(*operands, out=out, **how)
        if name == WITH:
            alone = product(*one, out=torch.empty_like(out[:1]), **how)
            if not torch.equal(alone.view(torch.int16), out[:1].view(torch.int16)):
                return math.nan
        return relative_error(out, expected)

    def call(*arguments):
        return product(*arguments[:-1], out=arguments[-1], **how)

    return Build(name, lambda: Implementation(calls_of(call, sets), error, limit), True)


def first_row(x):
    if isinstance(x, torch.Tensor):
        return x[:1]
    return octofold.ScaledTensor(x.data[:1], x.scale[:1], x.granularity)


def wide(x):
    return x.float() if isinstance(x, torch.Tensor) else x.dequantize("float32")


def products(run, section, rows):
    product, make = {
        "gemm": (octofold.gemm, partial(scaled, granularity="1x128")),
        "weight-only": (octofold.gemm_weight_only, normal),
    }[section]
    for n, k in LAYERS if run.on_gpu else ((256, 512),):
        for m in rows:

            def operands(m=m, n=n, k=k):
                out = torch.empty(m, n, dtype=torch.bfloat16, device=run.device)
                return make(run, m, k), scaled(run, n, k, "128x128"), out

            sets = sets_of(operands, n * k, run)
            x, w, _ = sets[0]
            expected, one = wide(x) @ wide(w).T, (first_row(x), w)
            limit = ERROR_LIMITS[torch.bfloat16]
            yield text_of((n, k)), m, sets, product, expected, one, limit


def attentions(run, rows):
    def attend(q, k, v, out, **how):
        return octofold.attention(q, k, v, out=out, **how)

    for queries, keys in SEQUENCES if run.on_gpu else ((1, 300),):
        for m in (m for m in rows if m * keys <= 2**19 and m * queries <= 2**13):

            def operands(m=m, queries=queries, keys=keys):
                q = normal(run, m, queries, HEADS, HEAD_SIZE)
                k, v = (
                    normal(run, m, keys, KEY_HEADS, HEAD_SIZE).to(torch.float8_e4m3fn) for _ in "kv"
                )
                return q, k, v, torch.empty_like(q)

            sets = sets_of(operands, 2 * m * keys * KEY_HEADS * HEAD_SIZE, run)
            q, k, v, _ = sets[0]
            expected = torch.nn.functional.scaled_dot_product_attention(
                *(x.bfloat16().transpose(1, 2) for x in (q, k, v)), enable_gqa=True
            ).transpose(1, 2)
            one = q[:1], k[:1], v[:1]
            yield f"{queries}, {keys} keys", m, sets, attend, expected, one, ATTENTION_LIMIT


def add_options(parser):
    add_choices(parser, "--sections", ("gemm", "weight-only", "attention"))
    parser.add_argument("--rows", type=sizes, metavar="M,M,...")


def cases(run):
    rows = run.options.rows or sizes(ROWS if run.on_gpu else "1,20")
    for section in run.options.sections:
        made = attentions(run, rows) if section == "attention" else products(run, section, rows)
        for case in made:
            yield section, *case


def measure(run, case):
    """Returns the section, the case's name, its rows, and the time with it over that without."""
    section, name, m, *operands = case
    builds = [build(each, run, *operands) for each in (WITHOUT, WITH)]
    times = measure_builds(run, section, f"{name}, {m}", builds)
    if len(times) < len(builds):
        return section, name, m, None
    return section, name, m, times[WITH].microseconds / times[WITHOUT].microseconds


def summary(found):
    for section in dict.fromkeys(section for section, *_ in found):
        ratios = {(name, m): r for of, name, m, r in found if of == section and r is not None}
        if ratios:
            show(section, ratios)


def show(section, found):
    names = list(dict.fromkeys(name for name, _ in found))
    rows = list(dict.fromkeys(m for _, m in found))
    table = []
    for name in names:
        ratios = [f"{found[name, m]:.2f}" if (name, m) in found else "" for m in rows]
        mean = geometric_mean(found[name, m] for m in rows if (name, m) in found)
        table.append([name, *ratios, mean])
    columns = [geometric_mean(found[key] for key in found if key[1] == m) for m in rows]
    table.append(["mean", *columns, geometric_mean(found.values())])
    print_table(f"{section}: time over that without", ["", *map(str, rows), "mean"], table)
