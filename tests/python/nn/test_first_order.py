"""Transforms of gradients by torch: right, or an error that says what to do instead."""

from functools import partial

import octofold
import pytest
import torch

from tests.python.nn.layer_support import KINDS, WIDTH, Routed, every, random

forward_ad = torch.autograd.forward_ad
nn = octofold.nn


def weight_only():
    layer = nn.weight_only_linear(torch.nn.Linear(WIDTH, 64))
    return lambda x: layer(x.bfloat16())


def stored():
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64))
    return octofold.models.enable_layerwise_casting(model, skip_modules_pattern=None)


def adapted():
    """Experts with an adapter."""
    weights = random(4, 256, WIDTH), random(4, WIDTH, 128)
    layer = nn.Experts.from_weights(*(octofold.quantize(w, "128x128", matrices=4) for w in weights))
    term = random(4, 8, 128).requires_grad_(), random(4, WIDTH, 8)
    return Routed(partial(layer, adapters={"down_proj": term}))


RUNS = KINDS | {
    "inference": lambda: nn.inference_linear(torch.nn.Linear(WIDTH, 64)),
    "weight only": weight_only,
    "layerwise casting": stored,
}
WITH_ADAPTERS = RUNS | {"adapted experts": adapted}
"""In parts torch's own functions, whose bits depend on strides."""


def total(run):
    return lambda x: run(x).float().sum()


@torch.no_grad()
def dual(run, x):
    with forward_ad.dual_level():
        return run(forward_ad.make_dual(x, x))


TRANSFORMS = {
    "grad": lambda run, x: torch.func.grad(total(run))(x),
    "vjp": lambda run, x: torch.func.vjp(run, x),
    "jvp": lambda run, x: torch.func.jvp(run, (x,), (x,)),
    "jvp without gradients": lambda run, x: torch.no_grad()(torch.func.jvp)(run, (x,), (x,)),
    "jvp of vmap": lambda run, x: torch.func.jvp(torch.func.vmap(run), (x[None],), (x[None],)),
    "make_dual": dual,
    "jacrev": lambda run, x: torch.func.jacrev(run)(x),
    "gradients for each sample": lambda run, x: torch.func.vmap(torch.func.grad(total(run)))(
        x[:, None]
    ),
    "vmap": lambda run, x: torch.func.vmap(run)(x.requires_grad_()[None]).sum().backward(),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@every(WITH_ADAPTERS)
def test_transforms_of_gradients_are_refused(make, transform):
    errors = octofold.UnsupportedError, RuntimeError  # the latter of operations without gradients
    with pytest.raises(errors, match=r"octofold\..*(torch\.func.*)?backward"):
        transform(make(), random(5, WIDTH))


CODES = torch.ones(1, 5, 1, 128).to(torch.float8_e4m3fn)
ROWS = octofold.ScaledTensor(CODES[0, :, 0], torch.ones(5, 1), "1x128")
OF_OTHERS = {
    "weight": lambda x: octofold.linear(torch.ones(3, 128), x),
    "bias": lambda x: octofold.linear(torch.ones(3, 128), torch.ones(5, 128), x[:, 0]),
    "norm": lambda x: octofold.norm_linear(torch.ones(3, 128), x[0], torch.ones(8, 128)),
    "scale": lambda x: octofold.gemm(octofold.ScaledTensor(ROWS.data, x[:, :1], "1x128"), ROWS),
    "cast": octofold.quantize,
    "attention": lambda x: octofold.attention(x[None, :, None].bfloat16(), CODES, CODES),
    "compiled": torch.compile(octofold.quantize),
}


@pytest.mark.parametrize("run", OF_OTHERS.values(), ids=OF_OTHERS)
def test_tangents_of_what_is_no_x_are_refused(run):
    with pytest.raises(octofold.UnsupportedError, match=r"octofold\..*make_dual"):
        dual(run, random(5, 128))


def test_what_has_no_tangent_is_computed_beside_tangents():
    layer = nn.inference_linear(torch.nn.Linear(WIDTH, 64)).requires_grad_(False)
    x, y = random(5, WIDTH), random(5, 64)
    _, tangent = torch.func.jvp(lambda y: layer(x) * y, (y,), (y,))
    assert torch.equal(tangent, layer(x) * y)


UNPACKED = {
    "other strides": (lambda t: torch.stack((t, t), -1)[..., 0], None),
    "another place": (lambda t: torch.cat((t.new_empty(1), t.flatten()))[1:].view(t.shape), None),
    "another dtype": (lambda t: t.double() if t.is_floating_point() else t.char(), "float64|int8"),
    "another shape": (lambda t: t[None], r"\[1, "),
    "another device": (lambda t: t.to("meta"), "on meta"),
}


@pytest.mark.parametrize(("unpack", "error"), UNPACKED.values(), ids=UNPACKED)
@every(RUNS)
def test_what_hooks_unpack_is_used_as_it_was_packed(make, unpack, error):
    run, x = make(), random(1, WIDTH).expand(5, WIDTH).requires_grad_()
    y = run(x)
    (expected,) = torch.autograd.grad(y, x, y.detach())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = run(x)
    if error is None:
        assert torch.equal(torch.autograd.grad(y, x, y.detach())[0], expected)
        return
    with pytest.raises(octofold.InvalidArgumentError, match=f"saved_tensors_hooks.*got.*({error})"):
        torch.autograd.grad(y, x, y.detach())


BATCHES = {
    "jacobian": lambda y, x, run: torch.autograd.functional.jacobian(run, x, vectorize=True),
    "batched gradients": lambda y, x, run: torch.autograd.grad(
        y, x, torch.ones(3, *y.shape, dtype=y.dtype), is_grads_batched=True
    ),
}


@pytest.mark.parametrize("differentiate", BATCHES.values(), ids=BATCHES)
@every(WITH_ADAPTERS)
def test_batches_of_gradients_are_refused(make, differentiate):
    run, x = make(), random(5, WIDTH).requires_grad_()
    with pytest.raises(octofold.UnsupportedError, match=r"vectorize=True.*is_grads_batched=True"):
        differentiate(run(x), x, run)


@every(WITH_ADAPTERS)
def test_second_derivatives_are_refused(make):
    run, x = make(), random(5, WIDTH).requires_grad_()
    errors = octofold.UnsupportedError, RuntimeError  # the latter of operations without gradients
    with pytest.raises(errors, match=r"octofold.*create_graph"):
        torch.autograd.grad(run(x).float().square().sum(), x, create_graph=True)
