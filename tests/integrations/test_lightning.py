"""Lightning needs no plug: a model that octofold.nn.convert() has converted is fitted by its
Trainer, checkpointed and resumed, as one without FP8."""

import warnings

import lightning
import octofold
import pytest
import torch

from tests.integrations.support import data, model_of


class Module(lightning.LightningModule):
    def __init__(self, recipe=None):
        super().__init__()
        self.save_hyperparameters()
        self.model = model_of(recipe)
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def fit(module, folder, epochs, precision="32-true", **options):
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        precision=precision,
        default_root_dir=folder,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        deterministic=True,
    )
    loader = torch.utils.data.DataLoader(data(), batch_size=32)
    with warnings.catch_warnings():  # of loader workers, and of folders that are there
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module, loader, **options)
    return trainer


def module_of(recipe, seed=0):
    torch.manual_seed(seed)
    return Module(recipe)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
def test_loss_falls_as_without(tmp_path, recipe, precision):
    found = {}
    for name in (None, recipe):
        module = module_of(name)
        fit(module, tmp_path, 4, precision)
        losses = torch.tensor(module.losses)
        found[name] = float(losses[:16].mean()), float(losses[-16:].mean())
    assert isinstance(module.model.first, octofold.nn.Linear)
    first, last = found[recipe]
    assert last < 0.6 * first
    assert found[recipe] != found[None]
    assert abs(last - found[None][1]) < 0.1 * first


def test_saved_and_resumed(tmp_path):
    whole, half = module_of("blockwise"), module_of("blockwise")
    fit(whole, tmp_path, 2)
    fit(half, tmp_path, 1).save_checkpoint(tmp_path / "half.ckpt")
    again = module_of("blockwise", seed=1)
    fit(again, tmp_path, 2, ckpt_path=tmp_path / "half.ckpt")
    assert again.losses == whole.losses[16:]
    loaded = Module.load_from_checkpoint(tmp_path / "half.ckpt")
    assert isinstance(loaded.model.first, octofold.nn.Linear)
    assert torch.equal(loaded.model.first.weight, half.model.first.weight)
