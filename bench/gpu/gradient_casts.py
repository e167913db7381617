"""What casts cost the weight gradients of a model in training:

    python bench/gpu/gradient_casts.py [--steps 100 1000] [--device cpu --size tiny]

Trains the model of examples/python/train_language_model.py in BF16. At each of these steps x and dY
of every linear layer that a recipe would convert are kept, and dW = dYᵀ · X is held against that of
their casts, both products in FP64: what remains is the error of the casts. dYᵀ has scales 1x128; of
the kinds that Xᵀ may have one is on each line. Errors are relative, of all layers together: of dW,
and of its worst column (an input feature, over all layers), which outlier channels would show.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import octofold
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))
from language_model.model import HEAD, SIZES
from language_model.text import text_of
from language_model.training import Settings, Trainer

KINDS = ("1x128", "channel", "128x128", "two-level", "two-level, a step old")


def transposed_cast(x, granularity):
    """Values of the cast of xᵀ."""
    cast = octofold.ops.cast(
        x, transposed=octofold.Format(granularity=granularity, rule="torchao")
    ).transposed
    return cast.dequantize("float32").double()


def two_level_cast(x, factor):
    """Of xᵀ: 128x128 scales of what is left behind a factor for each row."""
    factor = torch.where(factor > 0, factor, 1)
    return transposed_cast(x.float() / factor, "128x128") * factor[:, None].double()


def cast_of(kind, x, factor_before):
    if kind == "two-level":
        return two_level_cast(x, column_amax(x))
    if kind == "two-level, a step old":
        return two_level_cast(x, factor_before)
    return transposed_cast(x, kind)


def column_amax(x):
    return x.abs().amax(0).float()


class Captured:
    """x and dY of each linear layer, of one step."""

    def __init__(self, model):
        self.x, self.dy, self._hooks = {}, {}, []
        for name, layer in model.named_modules():
            if isinstance(layer, torch.nn.Linear) and name != HEAD:
                self._hooks += [
                    layer.register_forward_pre_hook(
                        lambda _, inputs, name=name: self._keep(self.x, name, inputs[0])
                    ),
                    layer.register_full_backward_hook(
                        lambda _, __, outputs, name=name: self._keep(self.dy, name, outputs[0])
                    ),
                ]

    @staticmethod
    def _keep(tensors, name, tensor):
        tensors[name] = tensor.detach().flatten(0, -2).bfloat16()

    def remove(self):
        for hook in self._hooks:
            hook.remove()


def captured_step(trainer):
    captured = Captured(trainer.model)
    trainer.advance()
    captured.remove()
    return captured


def errors(captured, factors):
    """By kind: the relative error of dW, and that of its worst column."""
    totals = {kind: [0.0, 0.0] for kind in KINDS}
    squares = 0.0
    for name, x in captured.x.items():
        dy = captured.dy[name]
        exact = dy.double().t() @ x.double()
        columns = torch.linalg.norm(exact, dim=0)
        squares += float(columns.square().sum())
        dy_cast = transposed_cast(dy, "1x128")
        for kind in KINDS:
            dw = dy_cast @ cast_of(kind, x, factors[name]).t()
            wrong = torch.linalg.norm(dw - exact, dim=0)
            totals[kind][0] += float(wrong.square().sum())
            totals[kind][1] = max(totals[kind][1], float((wrong / columns).nan_to_num(0).max()))
    return {kind: ((wrong / squares) ** 0.5, worst) for kind, (wrong, worst) in totals.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 1000, 2000])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--text-bytes", type=int, default=48_000_000)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    last = max(options.steps)
    settings = Settings(
        "bfloat16", 0, options.size, last + 1, 1e-3, options.text_bytes, options.device
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, text_of(Path(folder), options.text_bytes))
        for step in sorted(options.steps):
            while trainer.step < step - 1:
                trainer.advance()
            before = captured_step(trainer)
            factors = {name: column_amax(x) for name, x in before.x.items()}
            captured = captured_step(trainer)
            print(f"step {step}, {len(captured.x)} layers: error of dW, of its worst column")
            for kind, (error, worst) in errors(captured, factors).items():
                print(f"  1x128 × {kind:24s} {error:.4f}  {worst:.4f}", flush=True)


if __name__ == "__main__":
    main()
