"""Helpers that the tests of transformers' plug share: its models of the matrix as folders, and how
far outputs may be apart."""

import torch

from tests.python.checkpoints.matrix_models import TEXT_ROWS

ROWS = {row.name: row for row in TEXT_ROWS}
MIXTURES = ("Qwen3-MoE", "Mixtral", "DeepSeek-V3", "gpt-oss")


class Saved:
    """Makes the folder of a model of the matrix in its dtype, once, and says its class."""

    def __init__(self, tmp_path_factory):
        self._factory, self._made = tmp_path_factory, {}

    def __call__(self, name):
        if name not in self._made:
            torch.manual_seed(7)
            model = ROWS[name].make().to(ROWS[name].dtype).eval()
            with torch.no_grad():
                for key, parameter in model.named_parameters():
                    if parameter.dim() > 1 and "embed" not in key:
                        parameter.mul_(4)  # so that outputs say something
            self._made[name] = self._factory.mktemp("model"), type(model)
            model.save_pretrained(self._made[name][0], max_shard_size="300KB")
        return self._made[name]


def load(saved, name, *arguments, folder=None, **options):
    """The model, of which every parameter must have come from the folder."""
    its_folder, kind = saved(name)
    model, loading = kind.from_pretrained(
        folder or its_folder,
        *arguments,
        dtype=ROWS[name].dtype,
        output_loading_info=True,
        **options,
    )
    assert not any(loading.values()), {key: value for key, value in loading.items() if value}
    return model.eval()


def limit(name, compute):
    """The limit of the distance between outputs. Experts may be others once inputs are rounded to
    FP8; T5 and Mamba, with random weights, make much of the rounding to bfloat16."""
    if name in ("T5", "Mamba"):
        return 0.15 if compute == "weight-only" else 0.5
    if compute == "weight-only":
        return 0.02
    return 0.3 if name in (*MIXTURES, "Granite MoE") else 0.15
