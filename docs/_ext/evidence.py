"""The age of each table of docs/performance.md, for docs/evidence.md.

Below each table stand the machine, the date and the commits that it was measured with. A table is
as old as the commits since the first of these that have changed what it times: its kernels, and
what plans and launches them.
"""

import itertools
import re
import subprocess

PAGE = "docs/evidence"
ON_GITHUB = re.compile(r"<!-- evidence: speed -->\n\n\(.*\)")  # what stands in the table's place
OLD = 60
HEADING = re.compile(r"^## (?P<name>.+)$", re.MULTILINE)
SOURCE = re.compile(
    r"\*\*Machine\*\* (?P<machine>.*?) · \*\*Date\*\* (?P<date>.*?) · \*\*Commit\*\* (?P<commit>.*)"
)
COMMIT = re.compile(r"\b[0-9a-f]{7,8}\b")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
PRODUCTS = ("kernels/sm90", "kernels/mma", "kernels/epilogue", "src/plan/sm90", "src/plan/mma")
CASTS = ("kernels/cast", "kernels/norm", "src/plan/cast.cpp", "src/plan/norm.cpp")
WEIGHTS = ("kernels/weight_only", "kernels/weight_only_sm90", "src/plan/*weight_only.cpp")
ATTENTION = ("kernels/attention", "src/plan/*attention.cpp")
LAYERS = (*PRODUCTS, *CASTS, "src/ops", "python/octofold/nn")
TIMED = {
    "Dense products": PRODUCTS,
    "Gated products": PRODUCTS,
    "Products of groups": PRODUCTS,
    "Casts": CASTS,
    "Fused casts": CASTS,
    "Linear layers in training": LAYERS,
    "Linear layers at inference": LAYERS,
    "Experts": (*LAYERS, *WEIGHTS, "kernels/routing"),
    "Several GPUs": (*LAYERS, "python/octofold/distributed"),
    "FP8 weights alone": WEIGHTS,
    "Attention": ATTENTION,
    "Layerwise casting": (*LAYERS, *WEIGHTS, "python/octofold/models"),
    "Models of other libraries": (*LAYERS, *WEIGHTS, *ATTENTION, "python/octofold/integrations"),
    "The advisor": (*LAYERS, *WEIGHTS, "python/octofold/models"),
    "Checkpoints": ("src/model", "src/cpu/cast.cpp"),
    "Inside JAX": (*PRODUCTS, *CASTS, "python/octofold/jax"),
    "The same bits at every batch size": (*PRODUCTS, *WEIGHTS, *ATTENTION),
    "Host time": ("src/ops", "src/cuda", "bindings", "python/octofold/_core", "python/octofold/nn"),
    "CPU reference backend": ("src/cpu",),
}


def age(root, paths, text, date):
    """Commits since the oldest that the text names, or since the day; None without a history."""
    ages = []
    for since in COMMIT.findall(text) or [f"--since={date}"]:
        revisions = [since] if since.startswith("--") else [f"{since}.."]
        command = ["git", "-C", root, "rev-list", "--count", *revisions]
        command += ["HEAD"] if since.startswith("--") else []
        counted = subprocess.run([*command, "--", *paths], capture_output=True, text=True)
        if counted.returncode == 0:
            ages.append(int(counted.stdout))
    return max(ages, default=None)


def table(root):
    """Rows of what docs/performance.md says below its tables."""
    lines = ["| table | machine | date | commits since |", "|---|---|---|---|"]
    text = (root / "docs" / "performance.md").read_text()
    names = [*HEADING.finditer(text), None]
    for heading, following in itertools.pairwise(names):
        part = text[heading.end() : following.start() if following else None]
        for source in SOURCE.finditer(part):
            dates = DATE.findall(source["date"])
            count = age(root, TIMED[heading["name"]], source["commit"], min(dates))
            shown = "unknown" if count is None else f"{count}"
            shown = f"**{shown}: old**" if count is not None and count > OLD else shown
            days = " to ".join(sorted({min(dates), max(dates)}))
            machine = re.split(r"[,;]", source["machine"])[0]
            lines.append(f"| {heading['name']} | {machine} | {days} | {shown} |")
    return "\n".join(lines)


def read(app, docname, source):
    if docname == PAGE:
        source[0] = ON_GITHUB.sub(lambda _: table(app.srcdir), source[0])


def setup(app):
    app.connect("source-read", read, priority=100)  # ahead of the one that removes comments
    return {"parallel_read_safe": True}
