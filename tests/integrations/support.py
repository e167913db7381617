"""Helpers of several hosts: a model, data that it can learn, the bits of a state."""

import octofold
import torch


class Classifier(torch.nn.Module):
    """A classifier of vectors, with a residual block and a head."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(128, 256)
        self.norm = torch.nn.LayerNorm(256)
        self.second = torch.nn.Linear(256, 256)
        self.lm_head = torch.nn.Linear(256, 10)

    def forward(self, x):
        x = self.first(x).relu()
        return self.lm_head(x + self.second(self.norm(x)).relu())


def model_of(recipe):
    """recipe: of octofold.nn; None: without FP8."""
    model = Classifier()
    if recipe is not None:
        octofold.nn.convert(model, recipe)
        assert isinstance(model.second, octofold.nn.Linear)
    return model


def data():
    """Clusters around ten points, which overlap."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (512,), generator=generator)
    points = torch.randn(10, 128, generator=generator)
    noise = 2.5 * torch.randn(512, 128, generator=generator)
    return torch.utils.data.TensorDataset(points[labels] + noise, labels)


def same_bits(one, other):
    """True if two models, or their states, have the same keys, dtypes and bits."""
    one, other = (m.state_dict() if isinstance(m, torch.nn.Module) else m for m in (one, other))
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and same_tensor(value, other[name])
        for name, value in one.items()
    )


def same_tensor(one, other):
    if isinstance(one, octofold.nn.Fp8Weight):
        return one.scaled.equals(other.scaled)
    return torch.equal(as_bytes(one), as_bytes(other))


def fp8_layers(model):
    """The linear layers with an FP8 weight, by their names."""
    return {
        name: one
        for name, one in model.named_modules()
        if isinstance(one, torch.nn.Linear) and isinstance(one.weight, octofold.nn.Fp8Weight)
    }


def as_bytes(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)
