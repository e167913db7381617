"""Every code block of README.md and of docs runs, as code_blocks.py tells."""

import argparse
import importlib.metadata
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from octofold.integrations.hosts import HOSTS

from tests.project.code_blocks import GALLERY, blocks, commands, pages, pages_with
from tests.project.project_support import EXAMPLES, REPOSITORY, run

TOOL = Path(sys.executable).with_name("octofold")


def name_of(page):
    return str(page.relative_to(REPOSITORY))


def require_host(name):
    """By its distribution, which `make test-integrations` installs: a module `kernels` is there
    anyway, as the repository has a folder of that name."""
    distribution = HOSTS[name].distribution
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")


@pytest.mark.parametrize("page", pages_with("python", "console"), ids=name_of)
def test_python_and_console(page, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if page.parent.name == "integrations":
        require_host(page.stem)
    else:
        for package in ("matplotlib", "peft", "transformers"):
            pytest.importorskip(package)
    if page.name == "jax.md":
        pytest.importorskip("jax_tvm_ffi")
        monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # of which some blocks speak
    monkeypatch.setenv("OCTOFOLD_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(0)
    names = {"monkeypatch": monkeypatch}
    for block in blocks(page):
        if block.language not in ("python", "console"):
            continue
        exec(compile(block.given, f"{block} (given)", "exec"), names)
        if block.language == "console":
            for command in commands(block):
                assert command[0] == "octofold", f"{block}: {command}"
                run(TOOL, *command[1:])
        else:
            code = block.compiled()
            if not block.needs_gpu or torch.cuda.is_available():
                exec(code, names)


@pytest.mark.parametrize("page", pages_with("cpp"), ids=name_of)
def test_cpp_compiles(page, tmp_path):
    for block in blocks(page):
        if block.language != "cpp":
            continue
        lines = (block.given + block.code).splitlines()
        head = [line for line in lines if line.startswith(("#include", "using namespace"))]
        body = [line for line in lines if line not in head]
        source = tmp_path / "block.cpp"
        source.write_text("\n".join([*head, "void block() {", *body, "}"]))
        run("g++", "-std=c++20", "-fsyntax-only", f"-I{REPOSITORY / 'include'}", source)


def test_json_is_json():
    for page in pages_with("json"):
        for block in blocks(page):
            if block.language == "json":
                json.loads(block.code)


def test_every_block_is_known():
    """A language that nothing runs would be passed over."""
    known = {"python", "console", "bash", "sh", "cpp", "json", "{eval-rst}", ""}
    assert {block.language for page in pages() for block in blocks(page)} <= known
    shell = re.compile(r"^(?:\$ |octofold |python |pip |make )", re.MULTILINE)
    for page in pages():
        for block in blocks(page):
            assert block.language or not shell.search(block.code), f"{block}: say bash or console"


def subparser(arguments):
    """The parser of a command of the tool, and what is left of the arguments."""
    from octofold_tool.__main__ import build_parser

    parser = build_parser()
    arguments = list(arguments)
    while arguments:
        choices = next(
            (
                action.choices
                for action in parser._actions
                if isinstance(action, argparse._SubParsersAction)
            ),
            None,
        )
        if choices is None:
            break
        assert arguments[0] in choices, arguments
        parser = choices[arguments.pop(0)]
    return parser, arguments


def test_commands_of_the_tool_exist():
    """Blocks are parsed whole; in running text the command and its options are looked up."""
    from octofold_tool.__main__ import build_parser

    pytest.importorskip("matplotlib")
    for page in pages():
        for block in blocks(page):
            if block.language in ("bash", "sh", "console") and page != GALLERY:
                for command in commands(block):
                    if command[0] == "octofold":
                        build_parser().parse_args(command[1:])
        for found in re.findall(r"`octofold ([^`\n]+)`", page.read_text()):
            words = shlex.split(found.partition(" …")[0])
            if words[0].isupper() or words[0].startswith("-"):  # `octofold COMMAND --help`
                continue
            parser, rest = subparser(words)
            options = {option for action in parser._actions for option in action.option_strings}
            used = {word.partition("=")[0] for word in rest if word.startswith("--")}
            assert used <= options, f"{name_of(page)}: octofold {found}"


def test_scripts_and_their_options_exist():
    """The pages name them as `python path/to/script.py --option`, in blocks and in running text."""
    for page in pages():
        text = page.read_text().replace("\\\n", " ")
        for script, rest in re.findall(r"python3? ([\w/]+\.py)\b([^`\n#]*)", text):
            if script.startswith("gpu/"):  # of the bundle
                script = f"scripts/{Path(script).name}"
            path = REPOSITORY / script
            assert path.is_file(), f"{name_of(page)}: {script}"
            sources = "".join(part.read_text() for part in [path, *path.parent.rglob("*.py")])
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.partition(" -- ")[0]):
                # An option may also be made of a name, or be the opposite of one.
                name = option.removeprefix("--no-").removeprefix("--")
                known = f'"{option}"' in sources or f'"--{name}"' in sources
                assert known, f"{name_of(page)}: {script} {option}"


def test_targets_of_make_exist():
    targets = set(
        re.findall(r"^([a-z][a-z-]*)(?=[ a-z-]*:)", (REPOSITORY / "Makefile").read_text(), re.M)
    )
    for page in [*pages(), REPOSITORY / "CONTRIBUTING.md"]:
        for target in re.findall(r"`make ([a-z][a-z-]*)", page.read_text()):
            assert target in targets, f"{name_of(page)}: make {target}"
