"""Makes a release of the checkout: what is published, and the tag that says of which commit it is.

    scripts/release.py             # `make release`
    scripts/release.py --dry-run   # the same, without a commit and a tag
    scripts/release.py --dry-run x86_64   # and with the wheel of one machine alone

dist/release gets the sdist, the wheels that are built from it, their checksums (SHA256SUMS), a
CycloneDX list of what is inside (SBOM) and the section of the changelog (NOTES.md). The version is
that of CMakeLists.txt; the changelog's first section has to be of it, "(unreleased)", and gets the
date. Nothing is uploaded: docs/versioning.md says how.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import audit_wheel
import manylinux_wheel
from changelog import CHANGELOG, REPOSITORY, first_section, version
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

OUT = REPOSITORY / "dist" / "release"
# In the wheels, of manylinux_wheel.PACKAGES.
LINKED = tuple(name for name in manylinux_wheel.PACKAGES if name != "libfmt9")


def faults_of(of: str, state: str) -> list[str]:
    """Why this checkout cannot be released."""
    faults = []
    if state != "unreleased":
        faults.append(f"the changelog says that {of} was released ({state})")
    if git("tag", "--list", f"v{of}"):
        faults.append(f"the tag v{of} exists")
    if git("status", "--porcelain"):
        faults.append("files are changed or unknown to git")
    return faults


def git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(machines: list[str]) -> list[Path]:
    """The sdist, the wheels from it for these machines (none: for all), each audited."""
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    # The same commit gives the same bytes.
    os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct")
    build_sdist = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", OUT)
    manylinux_wheel.run(*build_sdist, REPOSITORY)
    sdist = next(OUT.glob("*.tar.gz"))
    manylinux_wheel.run(sys.executable, manylinux_wheel.__file__, sdist, OUT, *machines)
    wheels = sorted(OUT.glob("*.whl"))
    for wheel in wheels:
        audit = audit_wheel.audit(wheel)
        print(audit)
        if audit.faults():
            raise SystemExit(f"{wheel.name} {', '.join(audit.faults())}")
    manylinux_wheel.run(sys.executable, "-m", "twine", "check", "--strict", sdist, *wheels)
    return [sdist, *wheels]


def bill_of_materials(of: str) -> str:
    """Lists what is linked into the wheels, with the versions of Debian's packages."""
    linked = [
        component(PackageURL("deb", "debian", name, manylinux_wheel.version_of(name)))
        for name in LINKED
    ]
    zig = importlib.metadata.version("ziglang")  # brings the C++ run-time library
    linked.append(component(PackageURL("pypi", None, "ziglang", zig)))
    bom = Bom(components=linked)
    bom.metadata.component = component(PackageURL("pypi", None, "octofold", of))
    bom.register_dependency(bom.metadata.component, linked)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def component(purl: PackageURL) -> Component:
    return Component(
        name=purl.name,
        version=purl.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=purl.to_string(),
    )


def make(of: str, notes: str, machines: list[str]) -> None:
    """Fills the folder."""
    files = build(machines)
    bill = OUT / "octofold.cdx.json"
    bill.write_text(bill_of_materials(of))
    (OUT / "NOTES.md").write_text(notes)
    sums = "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in [*files, bill]
    )
    (OUT / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="neither commit nor tag")
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help="of a dry run: its wheels")
    arguments = parser.parse_args()
    dry = arguments.dry_run
    if arguments.machines and not dry:
        parser.error("a release has the wheels of all machines")
    of = version()
    text = CHANGELOG.read_text()
    state, notes = first_section(text, of)
    faults = faults_of(of, state)
    for fault in faults:
        print(f"release: {fault}", file=sys.stderr)
    if faults and not dry:
        raise SystemExit(1)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        CHANGELOG.write_text(text.replace(f"## {of} (unreleased)", f"## {of} ({today})", 1))
        make(of, notes, arguments.machines)
    except BaseException:
        CHANGELOG.write_text(text)
        raise
    if dry:
        CHANGELOG.write_text(text)
        print(f"release: {of} can be built; no commit and no tag, as this was a dry run")
    else:
        git("commit", "--all", "--message", f"Octofold {of}")
        message = f"Octofold {of}\n\n{notes}"  # lines that begin with # stay
        git("tag", "--annotate", f"v{of}", "--message", message, "--cleanup=verbatim")
        print(f"release: v{of} is tagged; docs/versioning.md says how to publish it")


if __name__ == "__main__":
    main()
