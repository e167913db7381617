"""The gallery: `console` blocks of docs/gallery.md are run as the site is built, on the CPU.

Below each command come what it printed, the pictures that it drew, and the program. Above the
first section stands a card for each, with its picture or the end of what it printed.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import example_runs  # noqa: E402

PAGE = "docs/gallery"
PROGRAM = re.compile(r"examples/\S+\.(?:py|cpp)")
LANGUAGES = {".py": "python", ".cpp": "cpp"}


def block(text: str, language: str, *classes: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language=language, classes=list(classes))


def image(path: Path, text: str) -> nodes.image:
    return nodes.image(uri=f"/{path.relative_to(ROOT)}", alt=text)


def results(command: str, title: str, ran: example_runs.Run) -> list[nodes.Node]:
    """The output that is shown below a command."""
    found = [block(ran.output.rstrip() or "(it prints nothing)", "text", "output")]
    found += [image(path, f"{title}: {path.stem}") for path in ran.pictures]
    program = PROGRAM.search(command)
    if program:
        path = ROOT / program[0]
        summary = f"<details><summary>{program[0]}</summary>"
        found.append(nodes.raw("", summary, format="html"))
        found.append(block(path.read_text(), LANGUAGES[path.suffix]))
        found.append(nodes.raw("", "</details>", format="html"))
    return found


def card(section: nodes.section, ran: example_runs.Run) -> nodes.container:
    title = section[0].astext()
    shown = nodes.container(classes=["card"])
    link = nodes.reference("", title, internal=True, refid=section["ids"][0])
    shown += nodes.paragraph("", "", link, classes=["card-title"])
    if ran.pictures:
        shown += image(ran.pictures[-1], title)
    else:
        shown += block("\n".join(ran.output.strip().splitlines()[-5:]), "text", "output")
    return shown


def run_all(app, doctree):
    if app.env.docname != PAGE:
        return
    consoles = [
        found
        for found in doctree.findall(nodes.literal_block)
        if found.get("language") == "console"
    ]
    commands = [example_runs.command_of(console.astext()) for console in consoles]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(example_runs.run, commands))
    cards = nodes.container(classes=["cards"])
    for console, command, ran in zip(consoles, commands, runs, strict=True):
        section = console.parent
        cards += card(section, ran)
        place = section.index(console) + 1
        section[place:place] = results(command, section[0].astext(), ran)
    page = next(iter(doctree.findall(nodes.section)))
    first = next(i for i, part in enumerate(page) if isinstance(part, nodes.section))
    page.insert(first, cards)


def outdated(app, env, added, changed, removed):
    """The page depends on more than its text."""
    return [PAGE]


def setup(app):
    app.connect("doctree-read", run_all, priority=100)  # before images are collected
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True}
