"""The reports that the commands show and write."""

import pytest
from octofold_tool import report


def test_a_failed_write_leaves_what_was_there(tmp_path):
    class FullDisk:
        def savefig(self, file, **_):
            file.write(b"half a picture")
            raise OSError(28, "No space left on device", str(target))

    target = tmp_path / "chart.png"
    target.write_bytes(b"the old picture")
    with pytest.raises(OSError, match="No space left"):
        report.write_png(target, FullDisk())
    assert target.read_bytes() == b"the old picture"
    assert list(tmp_path.iterdir()) == [target]


def test_a_narrow_terminal_loses_no_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    values = [f"{value}.25" for value in range(10)]
    report.print_table("title", [f"column{value}" for value in range(10)], [values], totals=values)
    out = capsys.readouterr().out
    for value in values:
        assert out.count(value) == 2
    assert "…" not in out


def test_pipes_get_plain_text(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    report.print_table("title", ["a"], [["1"]], totals=["1"])
    assert list(report.tracked("counting", [1, 2])) == [1, 2]
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert err == ""


@pytest.mark.parametrize(("color", "codes"), [("", "\x1b[1;36m"), ("1", "\x1b[1m")])
def test_no_color_is_respected(capsys, monkeypatch, color, codes):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", color)
    report.console().print("text", style="bold cyan")
    assert codes in capsys.readouterr().out
