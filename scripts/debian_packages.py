"""Debian's packages for any machine, unpacked into a folder. Nothing of it needs to be root."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""The keyring that the package debian-archive-keyring installs."""
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


def unpack(folder: Path, mirror: str, machine: str, suites: Sequence[str], script: str) -> None:
    """The packages that a script fetches, into folder/root. Apt has its state in the folder too,
    where nothing is installed."""
    lines = [suite.replace(" ", f" [signed-by={KEYRING}] {mirror} ") for suite in suites]
    private = "-oDir=$PWD -oDir::State::status=$PWD/status -oAPT::Sandbox::User=root"
    private += " ".join(f" -oAPT::Architecture{i}={DEBIAN_NAMES[machine]}" for i in ("", "s::"))
    steps = f"""
        apt() {{ apt-get -qq --yes {private} --no-install-recommends "$@"; }}
        mkdir -p etc/apt/preferences.d var/{{lib/apt/lists,cache/apt/archives}}/partial
        printf '%s main\\n' {" ".join(map(quote, lines))} > etc/apt/sources.list
        touch status; mkdir -p root/usr/{{bin,sbin,lib,lib64}}
        for i in bin sbin lib lib64; do ln -s usr/$i root/$i; done  # as in every Debian since 12
        apt update; {script}
        for i in var/cache/apt/archives/*.deb; do
          dpkg-deb --fsys-tarfile $i | tar -x --no-same-owner --keep-directory-symlink -C root
        done"""
    folder.mkdir(parents=True)
    subprocess.run(["bash", "-o", "pipefail", "-ec", steps], check=True, cwd=folder)
