"""A rollout model in FP8 that takes the weights of its trainer in place, step by step.

    python examples/python/refit_rollout.py --steps 20

Two processes, as reinforcement learning has them. The trainer's weights are BF16, and its layers
cast them. The rollout's are FP8: refit() draws tensors as they arrive and casts them into the
memory that is there. With set_batch_invariant() both give the same bits for the same tokens, so the
ratio of their probabilities is 1. The exit code is 1 if any bit differs.
"""

import argparse
import sys
import tempfile

import octofold
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Embedding, Linear, Sequential, SiLU, functional

TRAINER, ROLLOUT = 0, 1
TOKENS = torch.arange(257) % 64
"""The model learns that each token is followed by the next number."""


def log_probabilities(model: Sequential) -> Tensor:
    """Returns that of each token but the first."""
    return -functional.cross_entropy(model(TOKENS[:-1]).float(), TOKENS[1:], reduction="none")


def received(shape: torch.Size) -> Tensor:
    dist.recv(tensor := torch.empty(shape, dtype=torch.bfloat16))
    return tensor


def train_and_compare(model: Sequential, steps: int) -> None:
    octofold.nn.convert(model, module_filter_fn=lambda *_: True)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for step in range(steps):
        loss = -log_probabilities(model).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for tensor in model.state_dict().values():
            dist.send(tensor, ROLLOUT)
        ours = log_probabilities(model).detach()
        dist.recv(theirs := torch.empty_like(ours), ROLLOUT)
        differing = int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())
        print(f"step {step + 1}: loss {loss.item():.4f}, {differing} log-probabilities differ")
        if differing:
            sys.exit(1)


@torch.no_grad()
def roll_out(model: Sequential, steps: int) -> None:
    format = octofold.nn.recipes.blockwise.output.b  # the rule by which the trainer's layers cast
    options = {"activations": "auto", "module_filter_fn": lambda *_: True}
    octofold.nn.convert_weight_only(model, format, **options)
    for _ in range(steps):
        named = model.state_dict().items()  # with the names and shapes of the trainer's
        octofold.models.refit(model, ((name, received(tensor.shape)) for name, tensor in named))
        dist.send(log_probabilities(model), TRAINER)


def run(rank: int, steps: int, folder: str) -> None:
    octofold.set_batch_invariant(True)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Sequential(Embedding(64, 128), Linear(128, 256), SiLU(), Linear(256, 64)).bfloat16()
    (train_and_compare if rank == TRAINER else roll_out)(model, steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (parser.parse_args().steps, folder), nprocs=2)
