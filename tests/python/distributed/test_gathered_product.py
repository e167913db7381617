"""Products of rows that are gathered, by two processes: with gloo on the CPU, or on two GPUs.
bench/gpu/run.py parallel_products checks the bits of many sizes there."""

from tests.python.distributed import gathered_checks


def test_products(two_processes):
    two_processes.run(gathered_checks.products)


def test_errors(two_processes):
    two_processes.run(gathered_checks.errors)
