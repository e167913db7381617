"""scripts/example_runs.py: a command runs once, until something that it depends on changes."""

import example_runs
import pytest


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(example_runs, "KEPT", tmp_path / "examples")
    return tmp_path


def test_a_run_is_kept(kept):
    command = f"date +%N >> {kept}/log; ls; echo '<svg/>' > chart.svg"
    first, second = example_runs.run(command), example_runs.run(command)
    assert first == second
    assert len((kept / "log").read_text().splitlines()) == 1
    assert "examples" in first.output  # it is beside the examples
    assert [path.name for path in first.pictures] == ["chart.svg"]


def test_another_command_or_library_is_another_run(monkeypatch):
    before = example_runs.key("echo")
    assert example_runs.key("echo") == before
    assert example_runs.key("echo 1") != before

    class Other:
        def read_text(self, name):
            return "another wheel"

    monkeypatch.setattr(example_runs, "distribution", lambda name: Other())
    assert example_runs.key("echo") != before


def test_a_failure_is_not_kept(kept):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no luck"):
            example_runs.run("echo no luck; false")
    assert not list((kept / "examples").glob("*/output.txt"))


def test_commands_of_several_lines():
    assert example_runs.command_of("$ echo a \\\n  b\n") == "echo a    b"
