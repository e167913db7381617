"""Ways in which weights are written: each doubles one, in place or in new memory."""

import torch


def through_numpy(weight):
    weight.detach().numpy()[:] *= 2


def through_a_flat_buffer(weight):
    """DeepSpeed's ZeRO: parameters are views of one buffer, into which masters are copied."""
    flat = torch.zeros(weight.numel() + 128)
    master = 2 * weight.detach().flatten()
    weight.data = flat[128:].view_as(weight)
    flat[128:].copy_(master)


def through_the_old_buffer(weight):
    """The same, of a buffer that the weight has been a view of since before the first forward."""
    weight.data.view(-1).copy_(2 * weight.detach().flatten())


def from_a_master(weight):
    """Megatron's optimizers with FP32 masters."""
    master = 2 * weight.detach().clone()
    weight.data.copy_(master)


def as_an_average(weight):
    """Averages of weights, targets of reinforcement learning."""
    other = 3 * weight.detach() + weight.detach()
    weight.data.mul_(0).add_(other, alpha=0.5)


def in_place(weight):
    with torch.no_grad():
        weight.mul_(2)


def fused_step(weight):
    weight.grad = -weight.detach().clone()
    torch.optim.SGD([weight], lr=1.0, fused=True).step()
    weight.grad = None


WRITES = {
    "numpy": through_numpy,
    "flat buffer": through_a_flat_buffer,
    "old buffer": through_the_old_buffer,
    "master": from_a_master,
    "average": as_an_average,
    "in place": in_place,
    "fused step": fused_step,
    "data": lambda weight: weight.data.mul_(2),
    "new data": lambda weight: setattr(weight, "data", weight.data * 2),
    "detach": lambda weight: weight.detach().mul_(2),
    "foreach": lambda weight: torch._foreach_mul_([weight.data], 2),
    "subtraction": lambda weight: weight.data.sub_(-weight.detach().clone()),
}
