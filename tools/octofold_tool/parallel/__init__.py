"""Bytes and time of a training step on many GPUs, on paper.

models          what a model is made of, from its config.json
schemes         ways to spread it over GPUs
links           what an exchange moves and takes
measured_links  rates and latencies of links, from times
routing         how far an expert's tokens travel
rates           what one GPU does in a second, measured
ways            which numbers are multiplied, and which are sent
layers          a layer's work and exchanges in one micro batch
memory          what a GPU holds
steps           all of it: the time of a step
transfers       single exchanges, beside which benchmarks stand

docs/distributed/on-paper.md has the formulas.
"""
