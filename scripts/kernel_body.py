"""The run-time compiler's result for a kernel: registers, memory and instructions, for
compare_kernels.py. Found by NVRTC with the product's options, and kept in build/kernel_bodies."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import struct
import sys
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "kernel_bodies"
ARCHITECTURE = "sm_90a"


@dataclass(frozen=True)
class Body:
    registers: int
    memory_bytes: int  # stack, and stores and loads of spilled registers
    instructions: int
    products: int  # those of them that multiply matrices


@cache
def product_options() -> list[str]:
    text = (ROOT / "src" / "jit" / "nvrtc.cpp").read_text()
    listed = re.search(r"kOptions\[\] = \{(.*?)\};", text, re.DOTALL)
    assert listed is not None
    return re.findall(r'"(.*?)"', listed[1])


@cache
def nvrtc_file() -> str:
    if chosen := os.environ.get("OCTOFOLD_NVRTC"):
        return chosen
    nvidia = importlib.util.find_spec("nvidia")
    for folder in (nvidia and nvidia.submodule_search_locations) or []:
        for file in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return str(file)
    sys.exit("no NVRTC: `pip install nvidia-cuda-nvrtc`, or name the file in OCTOFOLD_NVRTC")


def check(nvrtc: ctypes.CDLL, result: int) -> None:
    if result != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(nvrtc.nvrtcGetErrorString(result).decode())


def strings(texts: list[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def compiled(headers: dict[str, str], header: str, expression: str) -> tuple[bytes, str]:
    """The cubin and the compiler's log, or RuntimeError."""
    nvrtc = ctypes.CDLL(nvrtc_file())
    program = ctypes.c_void_p()
    source = f'#include "{header}"\n'.encode()
    texts, names = strings(list(headers.values())), strings(list(headers))
    reference = ctypes.byref(program)
    check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(reference, source, b"kernel.cu", len(headers), texts, names),
    )
    check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression.encode()))
    options = [f"--gpu-architecture={ARCHITECTURE}", *product_options()]
    result = nvrtc.nvrtcCompileProgram(program, len(options), strings(options))
    log = content(nvrtc, program, "ProgramLog").decode()
    if result != 0:
        raise RuntimeError(log)
    cubin = content(nvrtc, program, "CUBIN")
    check(nvrtc, nvrtc.nvrtcDestroyProgram(reference))
    return cubin, log


def content(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


# The low 9 bits of an instruction's first word, as tests/cpp/support/sass.h reads them.
QGMMA, NOP = 0x1F3, 0x118


def operations(cubin: bytes) -> list[int]:
    """Returns opcodes of all functions, 16 bytes each, without the NOPs that fill up a section."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names_index = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + 64 * i) for i in range(count)]
    names = sections[names_index][4]
    found: list[int] = []
    for name, _, _, _, offset, size in sections:
        if not cubin[names + name :].startswith(b".text."):
            continue
        words = struct.iter_unpack("<QQ", cubin[offset : offset + size])
        found += [word & 0x1FF for word, _ in words]
        while found and found[-1] == NOP:
            found.pop()
    return found


def body_of(headers: dict[str, str], header: str, expression: str) -> Body | str:
    """Compiles the kernel that `expression` names in `header`, or says what keeps it from that."""
    inputs = [headers, header, expression, ARCHITECTURE, product_options(), nvrtc_file()]
    key = json.dumps([*inputs, [field.name for field in fields(Body)]])
    entry = CACHE / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    if entry.exists():
        return Body(**json.loads(entry.read_text()))
    try:
        cubin, log = compiled(headers, header, expression)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    memory = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log
    )
    registers = re.search(r"Used (\d+) registers", log)
    if memory is None or registers is None:
        return f"the compiler's log says nothing of registers and spills: {log!r}"
    listed = operations(cubin)
    found = Body(
        registers=int(registers[1]),
        memory_bytes=sum(map(int, memory.groups())),
        instructions=len(listed),
        products=listed.count(QGMMA),
    )
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = entry.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(found)))
    unfinished.rename(entry)
    return found
