"""Problems of attention on the device, for few queries and for many, against FP64."""

import octofold

from tests.gpu.gpu_support import DEVICE, ON_GPU, Surrounded, assert_same_bits, torch
from tests.python import attention_cases as cases

FEW, MANY = (2, 3, 700), (2, 150, 290)  # batch, queries, keys: kernels for both
LONG = 20_000 if ON_GPU else 2000


def on_device(problem):
    return {name: cases.to_torch(array, DEVICE) for name, array in problem.items()}


def numbers(tensor):
    return tensor.detach().double().cpu().numpy()


def assert_attention(problem, latent=None, of_terms=0.0, **options):
    """Asserts FP64's results, the same bits twice and no write beside `out`. With `latent`, so many
    numbers of each key are its value, in the same memory. of_terms: see assert_attended()."""
    if latent is not None:
        problem = cases.with_latent(problem, latent)
    expected = cases.attend(**problem, **options)
    dtype, tensors = problem["q"].dtype.name, on_device(problem)
    if latent is not None:
        tensors["v"] = tensors["k"][..., :latent]
    out, logarithms = octofold.attention(**tensors, **options, return_log_sum_exp=True)
    assert out.dtype is tensors["q"].dtype
    assert logarithms.dtype is torch.float32
    cases.assert_attended(numbers(out), numbers(logarithms), expected, dtype, of_terms=of_terms)
    size = out.shape[-1]
    if out.numel() == 0:
        return
    around = Surrounded(out.numel() // size, size, out.dtype, padding=8, offset=8)
    strides, step = [1], size + 8
    for count in reversed(out.shape[:-1]):
        strides.insert(0, step)
        step *= count
    given = around.view.as_strided(out.shape, strides, around.view.storage_offset())
    assert octofold.attention(**tensors, **options, out=given) is given
    assert_same_bits(given.contiguous(), out)
    around.assert_only_view_written()
