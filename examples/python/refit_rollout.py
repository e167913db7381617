"""A rollout model in FP8 that takes the weights of its trainer in place, step by step.

    python examples/python/refit_rollout.py
    python examples/python/refit_rollout.py --steps 20

Two processes, as reinforcement learning has them. The trainer's weights are BF16, and its layers
cast them; it takes steps of SGD and sends each weight. The rollout's weights are FP8: refit()
draws the tensors as they arrive and casts them into the memory that is there, which a CUDA graph
would go on reading. With set_batch_invariant() both give the same bits for the same tokens, so the
ratio of their probabilities is 1. The exit code is 1 if any bit differs.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import octofold
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Embedding, Linear, Sequential, SiLU

TRAINER, ROLLOUT = 0, 1
VOCABULARY = 64


def new_model() -> Sequential:
    torch.manual_seed(0)
    layers = Embedding(VOCABULARY, 128), Linear(128, 256), SiLU(), Linear(256, VOCABULARY)
    return Sequential(*layers).bfloat16()


def log_probabilities(model: Sequential, tokens: Tensor) -> Tensor:
    """Returns that of each next token."""
    logits = model(tokens[:-1]).float()
    return logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


def train(steps: int) -> int:
    """Learns that each token is followed by the next number. Returns how many bits differed."""
    model = new_model()
    octofold.nn.convert(model, module_filter_fn=lambda *_: True)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    tokens, differing = torch.arange(257) % VOCABULARY, 0
    for step in range(steps):
        loss = -log_probabilities(model, tokens).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for tensor in model.state_dict().values():
            dist.send(tensor, ROLLOUT)
        ours = log_probabilities(model, tokens).detach()
        dist.recv(theirs := torch.empty_like(ours), ROLLOUT)
        differing += int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())
        print(f"step {step + 1}: loss {loss.item():.4f}, {differing} log-probabilities differ")
    return differing


def arriving(model: Sequential) -> Iterator[tuple[str, Tensor]]:
    """The trainer's tensors, with the names and shapes of a model that is like its own."""
    for name, tensor in model.state_dict().items():
        dist.recv(new := torch.empty(tensor.shape, dtype=torch.bfloat16), TRAINER)
        yield name, new


def roll_out(steps: int) -> None:
    model = new_model()
    format = octofold.nn.recipes.blockwise.output.b  # the rule by which the trainer's layers cast
    options = {"activations": "auto", "module_filter_fn": lambda *_: True}
    octofold.nn.convert_weight_only(model, format, **options)
    tokens = torch.arange(257) % VOCABULARY
    for _ in range(steps):
        octofold.models.refit(model, arriving(model))
        with torch.no_grad():
            dist.send(log_probabilities(model, tokens), TRAINER)


def run(rank: int, steps: int, file: str) -> None:
    octofold.set_batch_invariant(True)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    differing = train(steps) if rank == TRAINER else roll_out(steps)
    dist.destroy_process_group()
    if differing:
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    with tempfile.TemporaryDirectory() as folder:
        options = parser.parse_args().steps, str(Path(folder) / "rendezvous")
        torch.multiprocessing.spawn(run, options, nprocs=2)
