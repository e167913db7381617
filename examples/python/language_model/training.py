"""One run: a recipe and a seed. All losses go to NAME.jsonl, what it takes to go on to NAME.pt."""

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .model import HEAD, SIZES, LanguageModel
from .text import Text, text_of

RECIPES = (
    "bfloat16",
    "blockwise",
    "rowwise",
    "tensorwise",
    "rowwise_with_gw_hp",
)
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.1, 1.0
WARM_UP = 0.05  # of all steps; then a cosine down to a tenth
VALIDATION_SEQUENCES = 512  # at most
GRAPH_AFTER = 3  # steps: kernels have to be loaded and memory warm before a capture


@dataclass(frozen=True)
class Settings:
    recipe: str
    seed: int
    size: str
    steps: int
    learning_rate: float
    text_bytes: int
    device: str
    compile: bool = False
    graph: bool = False
    evaluate_every: int = 200
    checkpoint_every: int = 500
    log_every: int = 50
    stop_at: int | None = None
    concurrent: int = 1  # runs at a time on this device: with more, times say little

    @property
    def name(self) -> str:
        return f"{self.recipe}-seed{self.seed}"

    def identity(self) -> dict[str, Any]:
        """Returns the settings that have to be the same for a run to be resumed."""
        keys = ("recipe", "seed", "size", "steps", "learning_rate", "text_bytes")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Progress:
    name: str
    step: int
    steps: int
    loss: float
    validation_loss: float


Report = Callable[[Progress], None]


def rates(settings: Settings) -> Tensor:
    """The learning rate of each step."""
    warm_up = max(1, round(WARM_UP * settings.steps))
    step = torch.arange(settings.steps, dtype=torch.float64)
    cosine = 0.55 + 0.45 * torch.cos(math.pi * (step - warm_up) / (settings.steps - warm_up + 1))
    rise = (step + 1) / warm_up
    return (settings.learning_rate * torch.where(step < warm_up, rise, cosine)).float()


def convert(model: torch.nn.Module, recipe: str) -> None:
    """All linear layers but the output layer; to FP8 also where a small one is faster in BF16."""
    if recipe != "bfloat16":
        import octofold.nn

        octofold.nn.convert(model, recipe, lambda _, name: name != HEAD, force_fp8=True)


class Batches:
    """Starts of the sequences of each step: a permutation of the text's windows for each epoch,
    drawn from the seed and the epoch's number. The step alone says where one is in the data."""

    def __init__(self, length: int, context: int, batch: int, seed: int, device: str) -> None:
        self._windows = (length - 1 - context) // context
        if self._windows < batch:
            raise ValueError(f"--text-bytes: {length} bytes are fewer than a step reads")
        self._context, self._batch, self._seed, self._device = context, batch, seed, device
        self._epoch = -1

    def starts(self, step: int) -> Tensor:
        """int64 [batch] on the device."""
        epoch, step = divmod(step, self._windows // self._batch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(1_000_003 * self._seed + epoch)
            offset = torch.randint(self._context, (), generator=generator)
            order = torch.randperm(self._windows, generator=generator) * self._context + offset
            self._epoch, self._order = epoch, order.to(self._device)
        return self._order[step * self._batch : (step + 1) * self._batch]


class Trainer:
    """Trains a model. All that a step reads and writes lies on the device at fixed places: nothing
    waits for it, and a CUDA graph of a step can be replayed."""

    def __init__(self, settings: Settings, text: Text) -> None:
        device, size = settings.device, SIZES[settings.size]
        self.settings, self.size, self.step = settings, size, 0
        torch.manual_seed(settings.seed)
        self.model = LanguageModel(size)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.model.to(device)
        convert(self.model, settings.recipe)
        self._forward = torch.compile(self.model) if settings.compile else self.model
        self.rate = torch.zeros((), device=device)
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        vectors = [p for p in self.model.parameters() if p.dim() != 2]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": WEIGHT_DECAY},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=self.rate,
            betas=BETAS,
            fused=True,
            capturable=settings.graph,
        )
        self.text, self.validation = text.training.to(device), text.validation.to(device)
        self.batches = Batches(len(text.training), size.context, size.batch, settings.seed, device)
        self.rates = rates(settings).to(device)
        self.starts = torch.zeros(size.batch, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        self.losses = torch.zeros(settings.steps, device=device)
        self._offsets = torch.arange(size.context + 1, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _loss(self, text: Tensor, starts: Tensor) -> Tensor:
        tokens = text[starts[:, None] + self._offsets].long()
        # Each weight is used once a step: nothing to cache, and a graph must not hold a stale cast.
        device = self.settings.device.partition(":")[0]
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            logits = self._forward(tokens[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    def _update(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self.text, self.starts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def advance(self) -> None:
        """One step; the host does not wait for it."""
        self.starts.copy_(self.batches.starts(self.step))
        self.rate.copy_(self.rates[self.step])
        if self._graph is not None:
            self._graph.replay()
        elif self.settings.graph and self.step >= GRAPH_AFTER:
            self._capture()
        else:
            self._update()
        self.losses[self.step] = self.loss
        self.step += 1

    def _capture(self) -> None:
        # The steps before ran on the default stream, this one runs on a stream of its own.
        for parameter in self.model.parameters():
            parameter.grad = None
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._update()
        self._graph.replay()

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Returns the loss of the same windows in every run. Waits for the device."""
        context, batch = self.size.context, self.size.batch
        count = min(VALIDATION_SEQUENCES, (len(self.validation) - 1) // context) // batch * batch
        if count == 0:
            raise ValueError("--text-bytes: too few for a validation batch")
        starts = torch.arange(count, device=self.settings.device) * context
        self.model.eval()
        losses = [self._loss(self.validation, part) for part in starts.split(batch)]
        self.model.train()
        return float(torch.stack(losses).mean())

    def state(self) -> dict[str, Any]:
        on_gpu = self.settings.device.startswith("cuda")
        return {
            "settings": self.settings.identity(),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state() if on_gpu else None,
        }

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.settings.device, weights_only=True)
        if state["settings"] != self.settings.identity():
            raise ValueError(
                f"--resume: {path} is of {state['settings']}, expected {self.settings.identity()}"
            )
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        torch.set_rng_state(state["random"].cpu())
        if state["cuda_random"] is not None and self.settings.device.startswith("cuda"):
            torch.cuda.set_rng_state(state["cuda_random"].cpu())


class Records:
    """The lines of NAME.jsonl: the settings, then losses by step."""

    def __init__(self, path: Path, header: dict[str, Any], resumed_step: int | None) -> None:
        self._path = path
        lines = [{"run": header}]
        if resumed_step is not None:  # what the run did behind its checkpoint, it does again
            lines += [line for line in read_lines(path)[1:] if line["step"] <= resumed_step]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        temporary.replace(path)

    def add(self, *lines: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def save(state: dict[str, Any], path: Path) -> None:
    temporary = path.with_suffix(".pt.tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def header_of(trainer: Trainer, text: Text) -> dict[str, Any]:
    import octofold

    on_gpu = trainer.settings.device.startswith("cuda")
    return {
        **dataclasses.asdict(trainer.settings),
        **dataclasses.asdict(trainer.size),
        "parameters": trainer.parameters,
        "text": text.digest,
        "training_bytes": len(text.training),
        "validation_bytes": len(text.validation),
        "device_name": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": str(torch.__version__),
        "octofold": octofold.__version__,
    }


def train(settings: Settings, output: Path, resume: bool, report: Report) -> None:
    """One run from its beginning, or from its checkpoint, to its end or `stop_at`."""
    records_path, checkpoint = (output / f"{settings.name}{end}" for end in (".jsonl", ".pt"))
    text = text_of(output, settings.text_bytes)
    trainer = Trainer(settings, text)
    resumed = resume and checkpoint.exists()
    if resumed:
        trainer.load(checkpoint)
    header = header_of(trainer, text)
    records = Records(records_path, header, trainer.step if resumed else None)
    last = min(settings.steps, settings.stop_at or settings.steps)
    validation_loss = math.nan
    logged, start = trainer.step, time.perf_counter()
    while trainer.step < last:
        trainer.advance()
        step, at_end = trainer.step, trainer.step == last
        evaluates = step % settings.evaluate_every == 0 or step == settings.steps
        saves = step % settings.checkpoint_every == 0 or at_end
        if not (evaluates or saves or at_end or step % settings.log_every == 0):
            continue
        losses = trainer.losses[logged:step].tolist()  # waits for the device
        seconds = (time.perf_counter() - start) / (step - logged)
        records.add(
            *({"step": logged + 1 + i, "loss": loss} for i, loss in enumerate(losses)),
            {"step": step, "seconds_per_step": seconds, "of_steps": step - logged},
        )
        if evaluates:
            validation_loss = trainer.validation_loss()
            records.add({"step": step, "validation_loss": validation_loss})
        report(Progress(settings.name, step, settings.steps, losses[-1], validation_loss))
        if saves:
            save(trainer.state(), checkpoint)
        synchronize(settings.device)
        logged, start = step, time.perf_counter()
