"""Products of rows that are gathered, by two processes with gloo on the CPU. bench/gpu/overlap.py
checks the bits on GPUs."""

import gathered_checks


def test_products(two_processes):
    two_processes.run(gathered_checks.products)


def test_errors(two_processes):
    two_processes.run(gathered_checks.errors)
