"""Trains a small Llama-like model, or one of experts, on any number of processes:

    torchrun --nproc-per-node 4 train_parallel.py --output run                    FSDP2 of four
    torchrun --nproc-per-node 4 train_parallel.py --output run --tensor 2         and of two by two
    torchrun --nproc-per-node 4 train_parallel.py --output run --tensor 2 --experts 8
    python train_parallel.py --output alone                                       one process

Weights are gathered in FP8, activations and their gradients travel between tensor ranks, and tokens
to their experts, as FP8 codes with scales (docs/distributed.md). The batch of a step is the same
for any number of processes, and so is the curve, but for rounding. Losses go to OUTPUT/losses.jsonl
and checkpoints beside it. The same command goes on from the last one, on another number of
processes too, if it was interrupted or killed.

Needs: pip install '.[torch,tool]'
"""

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from language_model.text import text_of
from parallel_training.model import LanguageModel, Size
from parallel_training.ranks import Ranks, expert_parameters, spread
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional

RECIPES = ("bfloat16", "blockwise", "tensorwise")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="DIR", help="losses and checkpoints")
    add("--tensor", type=int, default=1, metavar="RANKS", help="tensor parallel; default: 1")
    add("--experts", type=int, default=0, help="of each layer; 0: an MLP instead")
    add("--recipe", choices=RECIPES, default="blockwise", help="default: %(default)s")
    add("--steps", type=int, default=50, help="default: %(default)s")
    add("--sequences", type=int, default=8, help="of a step, over all ranks; default: %(default)s")
    add("--layers", type=int, default=2, help="default: %(default)s")
    add("--learning-rate", type=float, default=1e-3, help="default: %(default)s")
    add("--seed", type=int, default=0, help="of weights and data; default: %(default)s")
    add("--text-bytes", type=int, default=1_000_000, help="default: %(default)s")
    add("--checkpoint-every", type=int, default=10, metavar="STEPS", help="default: %(default)s")
    add("--timeout", type=float, default=600, metavar="SECONDS", help="of what ranks wait for")
    return parser.parse_args()


def start(seconds: float) -> str:
    """Join the group that torchrun has made, or one of this process alone. Returns the device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    options: dict[str, Any] = {"timeout": timedelta(seconds=seconds)}
    if "RANK" not in os.environ:
        store = torch.distributed.FileStore(f"{tempfile.mkdtemp()}/rendezvous", 1)
        options |= {"store": store, "rank": 0, "world_size": 1}
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(backend, **options)
    return device


class Training:
    """The model, its optimizer, and the step that comes next."""

    def __init__(self, options: argparse.Namespace, device: str) -> None:
        self.options, self.step = options, 0
        self.size = replace(Size(), layers=options.layers, experts=options.experts)
        self.ranks = Ranks.of(device, options.tensor)
        self.text = self._text()
        torch.manual_seed(options.seed)  # all ranks begin with the same weights
        model = LanguageModel(self.size).to(device)
        self.model = spread(model, self.size, self.ranks, options.recipe)
        self.experts = expert_parameters(self.model)
        known = set(self.experts)
        others = [parameter for parameter in self.model.parameters() if parameter not in known]
        groups = [{"params": group} for group in (others, self.experts) if group]
        self.optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95))
        self.device = device

    def _text(self) -> Tensor:
        """The training part, of bytes. The first rank writes it to OUTPUT, the others read it."""
        for is_first in (True, False):
            if is_first == (torch.distributed.get_rank() == 0):
                text = text_of(self.options.output, self.options.text_bytes)
            torch.distributed.barrier()
        return text.training

    def batch(self) -> Tensor:
        """[sequences, tokens + 1] of all ranks, that the seed and the step alone determine."""
        context = self.size.context
        generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + self.step)
        shape = (self.options.sequences, 1)
        starts = torch.randint(len(self.text) - context, shape, generator=generator)
        return self.text[starts + torch.arange(context + 1)].long()

    def train_once(self) -> float:
        """A step. Returns the mean loss of all tokens of all ranks."""
        ranks, batch = self.ranks, self.batch()
        tokens = ranks.own(batch[:, :-1]).to(self.device)
        targets = ranks.own(batch[:, 1:]).to(self.device)
        with torch.autocast(self.device, torch.bfloat16):
            logits = self.model(tokens)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        (loss / ranks.tensor.size()).backward()  # each has its part of the tokens
        for parameter in self.experts:  # FSDP takes the mean over data ranks of all others
            if parameter.grad is not None:
                parameter.grad /= ranks.data.size()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        mean = loss.detach()
        torch.distributed.all_reduce(mean)
        return mean.item() / torch.distributed.get_world_size()

    def save(self) -> None:
        """A folder that is there whole, or not at all."""
        folder = self.options.output / f"step-{self.step}"
        draft = folder.with_suffix(".part")
        torch.distributed.checkpoint.save(self._state(), checkpoint_id=draft)
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        torch.distributed.barrier()

    def resume(self) -> None:
        """From the last checkpoint, whatever number of processes wrote it."""
        steps = [int(f.name[5:]) for f in self.options.output.glob("step-*") if not f.suffix]
        if not steps:
            return
        state = self._state()
        folder = self.options.output / f"step-{max(steps)}"
        torch.distributed.checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]

    def log(self, loss: float) -> None:
        """By the first rank. What an interrupted run wrote after its last checkpoint goes."""
        file = self.options.output / "losses.jsonl"
        lines = file.read_text().splitlines()[: self.step - 1] if file.exists() else []
        lines.append(json.dumps({"step": self.step, "loss": loss}))
        file.write_text("\n".join(lines) + "\n")
        print(f"step {self.step}: loss {loss:.4f}", flush=True)

    def _state(self) -> dict[str, Any]:
        of_model, of_optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": of_model, "optimizer": of_optimizer, "step": self.step}


def main() -> None:
    options = parsed()
    options.output.mkdir(parents=True, exist_ok=True)
    device = start(options.timeout)
    training = Training(options, device)
    training.resume()
    is_first = torch.distributed.get_rank() == 0
    while training.step < options.steps:
        loss = training.train_once()
        if is_first:
            training.log(loss)
        if training.step % options.checkpoint_every == 0 or training.step == options.steps:
            training.save()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
