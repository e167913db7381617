#!/usr/bin/env python3
"""Writes the table of rooms and doors in docs/architecture.md from doors.json."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- doors.json -->\n", "<!-- end of doors.json -->\n"


def table(rooms: dict[str, dict]) -> str:
    lines = ["| room | holds | may include |", "|---|---|---|"]
    for room, entry in rooms.items():
        doors = ", ".join(f"`{door}`" for door in entry["doors"]) or "-"
        lines.append(f"| `{room}` | {entry['holds']} | {doors} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    rooms = json.loads((ROOT / "doors.json").read_text("utf-8"))["rooms"]
    page = ROOT / "docs" / "architecture.md"
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{table(rooms)}{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
