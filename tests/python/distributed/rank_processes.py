"""Processes of a group that run checks as they are asked to: by gloo on the CPU or, with
OCTOFOLD_RANKS_DEVICE=cuda, by NCCL, a GPU each.

They live as long as a test module. On the CPU they are forks of one server that has imported what
takes seconds, torch and octofold, and has run nothing: each module has new ones at no cost.
"""

import functools
import importlib
import inspect
import multiprocessing
import os
import tempfile
import traceback
from contextlib import contextmanager
from datetime import timedelta

import pytest

DEVICE = os.environ.get("OCTOFOLD_RANKS_DEVICE", "cpu")
TIMEOUT = 120
IMPORTED = [
    "octofold.distributed",
    "torch._functorch.aot_autograd",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
]


def here(value):
    """A tensor or a module on the device of this process."""
    return value.to(DEVICE)


def on_ranks(check, fixture="processes"):
    """Makes check(rank, ...) a test that calls it on each rank of a fixture of conftest.py. What
    comes after the rank are the test's parameters and fixtures, which have to be sendable."""

    @functools.wraps(check)
    def test(**arguments):
        arguments.pop(fixture).run(check, **arguments)

    _, *others = inspect.signature(check).parameters.values()
    group = inspect.Parameter(fixture, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = [other for other in others if other.default is inspect.Parameter.empty]
    test.__signature__ = inspect.Signature([group, *others])
    return test


on_two_ranks = functools.partial(on_ranks, fixture="two_processes")
on_four_ranks = functools.partial(on_ranks, fixture="four_processes")


@contextmanager
def each_call_waits():
    """GPUs' ranks compare what is known beside the step, and raise in a later call, when the stream
    of the one that came too early hangs. Tests of single calls wait for it."""
    os.environ["OCTOFOLD_CHECK_RANKS"] = "1"
    try:
        yield
    finally:
        del os.environ["OCTOFOLD_CHECK_RANKS"]


class Processes:
    """So many ranks. run(check, ...) calls check(rank, ...) on each of them, of a module that they
    can import, and gives what they return. An exception in any of them is an AssertionError."""

    def __init__(self, size, collective_timeout=60):
        self.size = size
        self._collective_timeout = collective_timeout
        self._started = []

    def run(self, check, *arguments, may_die=None, **options):
        """may_die: the number of a rank that is not expected to answer."""
        self._start()
        for connection, _ in self._started:
            connection.send((check.__module__, check.__qualname__, arguments, options))
        answers = []
        for connection, _ in self._started:
            if not connection.poll(TIMEOUT):
                answers.append((False, f"no answer within {TIMEOUT} s"))
                continue
            try:
                answers.append(connection.recv())
            except (EOFError, ConnectionResetError):
                answers.append((False, "the process died"))
        failures = [
            f"rank {i}: {answer}"
            for i, (well, answer) in enumerate(answers)
            if not well and i != may_die
        ]
        if failures:
            self.stop()
            raise AssertionError("\n".join(failures))
        return [answer for _, answer in answers]

    def stop(self):
        for connection, process in self._started:
            connection.close()
            process.kill()
            process.join()
        self._started = []

    def _start(self):
        if self._started:
            return
        # CUDA's libraries have not been made for forks.
        context = multiprocessing.get_context("forkserver" if DEVICE == "cpu" else "spawn")
        context.set_forkserver_preload(IMPORTED)
        folder = tempfile.mkdtemp()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            group = (rank, self.size, f"{folder}/rendezvous", self._collective_timeout)
            arguments = (theirs, dict(os.environ), *group)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._started.append((ours, process))


def _serve(connection, environment, rank, size, file, seconds):
    import torch

    os.environ.clear()  # the server's, as it was when it began
    os.environ.update(environment)
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "gloo" if DEVICE == "cpu" else "cpu:gloo,cuda:nccl",
        store=torch.distributed.FileStore(file, size),  # torch does not unquote URLs
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=seconds),
    )
    while True:
        try:
            module, name, arguments, options = connection.recv()
        except EOFError:
            return
        try:
            check = inspect.unwrap(getattr(importlib.import_module(module), name))
            connection.send((True, check(rank, *arguments, **options)))
        except (Exception, pytest.fail.Exception):  # but a SystemExit is to end it
            connection.send((False, traceback.format_exc()))
