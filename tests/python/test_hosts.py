"""Rules that plugs have in common, without a host: versions, the switch, plugs that fail, and the
options of models that are loaded in FP8."""

import importlib.metadata

import octofold
import pytest
from octofold.integrations import hosts

from tests.python.own_process import python


def found(monkeypatch, version):
    def of(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", of)


@pytest.mark.parametrize("version", ["0.26", "0.33.0", "0.33.2rc1+cu130"])
def test_a_version_that_is_known(monkeypatch, version):
    found(monkeypatch, version)
    hosts.require("vllm")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.25.1", r"vllm is for vllm>=0\.26,<0\.34, found vllm 0\.25\.1: nothing was changed"),
        ("0.34", r"found vllm 0\.34: nothing"),
        ("0.34.0", r"found vllm 0\.34\.0"),
        ("1.0", r"found vllm 1\.0"),
        (None, r"needs vllm>=0\.26,<0\.34, which is not installed"),
    ],
)
def test_another_version_is_a_sentence_with_both(monkeypatch, version, message):
    found(monkeypatch, version)
    with pytest.raises(octofold.UnavailableError, match=message):
        hosts.require("vllm")


@pytest.mark.parametrize(
    ("text", "on"),
    [("", True), ("0", False), ("vllm", True), ("sglang", False), ("sglang, vllm", True)],
)
def test_the_switch(monkeypatch, text, on):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", text)
    assert hosts.switched_on("vllm") is on


def test_a_switch_that_names_nothing(monkeypatch):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", "vlm")
    with pytest.raises(octofold.InvalidArgumentError, match=r"OCTOFOLD_INTEGRATIONS.*got vlm"):
        hosts.switched_on("vllm")


class Log:
    def __init__(self):
        self.said, self.warned = [], []


@pytest.mark.parametrize("error", [octofold.UnsupportedError("no"), ImportError("no")])
def test_the_host_goes_on_without_a_plug_that_fails(monkeypatch, error):
    found(monkeypatch, "0.33.0")
    log = Log()

    def plug():
        raise error

    assert not hosts.plug_in("vllm", plug, log.said.append, log.warned.append)
    assert log.warned == ["octofold is not used: no"]
    assert log.said == []


def test_what_a_plug_says_and_when_it_is_off(monkeypatch):
    found(monkeypatch, "0.33.0")
    log = Log()
    assert hosts.plug_in("vllm", lambda: "octofold is first", log.said.append, log.warned.append)
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", "0")
    assert not hosts.plug_in("vllm", lambda: "again", log.said.append, log.warned.append)
    assert log.said == [
        "octofold is first",
        "octofold is switched off by OCTOFOLD_INTEGRATIONS=0",
    ]
    found(monkeypatch, "0.1")
    monkeypatch.delenv("OCTOFOLD_INTEGRATIONS")
    assert not hosts.plug_in("vllm", lambda: "again", log.said.append, log.warned.append)
    assert "found vllm 0.1" in log.warned[0]


IMPORT = """
import importlib, importlib.metadata as metadata, sys, octofold, torch
known = metadata.version
metadata.version = lambda name: "9999.1" if name in sys.argv[1:] else known(name)
for host in sys.argv[1:]:
    try:
        importlib.import_module(f"octofold.integrations.{host}")
    except octofold.UnavailableError as error:
        print(error)
print(sorted({*sys.argv[1:]} & sys.modules.keys()))
"""


def test_plugs_by_import_leave_another_version_alone():
    """They raise before they import the host, so that nothing is registered."""
    pytest.importorskip("torch")
    names = ("transformers", "diffusers", "peft", "torchao", "torchtitan")
    *sentences, imported = python(IMPORT, *names).splitlines()
    assert sentences == [
        f"octofold.integrations.{name} is for {hosts.HOSTS[name].wanted}, found {name} 9999.1: "
        "nothing was changed"
        for name in names
    ]
    assert imported == "[]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "1x128"}, "'format': expected scales of a weight, 128x128, channel, tensor"),
        ({"format": "int8"}, "'format'"),
        ({"format": {"bits": 8}}, "'format': expected the fields of an octofold.Format"),
        ({"compute": "fp8"}, "'compute': expected one of auto, native, weight-only, got 'fp8'"),
        ({"modules_to_not_convert": "lm_head"}, "'modules_to_not_convert': expected a list"),
        ({"modules_to_not_convert": ["("]}, "'modules_to_not_convert': expected names"),
        ({"bits": 4}, "unexpected bits"),
    ],
)
def test_bad_options_of_loading(options, message):
    pytest.importorskip("torch")
    from octofold.integrations.model_loading import LoadingConfig

    class HostConfig(LoadingConfig):
        operation = "Host"

    with pytest.raises((octofold.InvalidArgumentError, TypeError), match=f"Host.*{message}"):
        HostConfig(**options)
