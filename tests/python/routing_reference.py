"""Routing by torch's own operations, for tests on the CPU and on a GPU."""

import pytest

torch = pytest.importorskip("torch")


def scores_of(logits, scoring):
    wide = logits.double()
    return wide.softmax(-1) if scoring == "softmax" else wide.sigmoid()


def choices_of(logits, scoring="softmax", bias=None, groups=1, top_groups=1):
    """The numbers of which the k largest are taken, FP64; -inf of groups that are out."""
    if scoring == "softmax":
        return logits.double()
    choices = scores_of(logits, scoring)
    if bias is not None:
        choices = choices + bias.double()
    if groups == 1:
        return choices
    by_group = choices.unflatten(-1, (groups, -1))
    best = by_group.topk(2, -1).values.sum(-1).topk(top_groups, -1).indices
    kept = torch.zeros_like(by_group[..., 0], dtype=torch.bool).scatter(-1, best, True)
    return by_group.masked_fill(~kept[..., None], -torch.inf).flatten(-2)


def weights_of(logits, ids, scoring="softmax", normalize=False, scaling_factor=1.0):
    """Differentiable; ids of -1 have weight 0, and no part in the sum."""
    weights = scores_of(logits, scoring).gather(-1, ids.long().clamp(min=0)) * (ids >= 0)
    if normalize:
        little = 1e-20 if scoring == "sigmoid" else 0
        weights = weights / (weights.sum(-1, keepdim=True) + little)
    return weights * scaling_factor


def sort_by_expert(ids, experts):
    """Offsets, sources and positions."""
    flat = ids.flatten().cpu()
    order = torch.argsort(torch.where(flat < 0, experts, flat), stable=True)
    counts = torch.bincount(flat[flat >= 0], minlength=experts)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    rows = int(offsets[-1])
    sources = torch.where(torch.arange(len(flat)) < rows, order, -1)
    positions = torch.full((len(flat),), -1)
    positions[order[:rows]] = torch.arange(rows)
    results = offsets, sources, positions.view(ids.shape)
    return tuple(result.to(torch.int32).to(ids.device) for result in results)


def combine(y, positions, weights=None, c=None, out_dtype=None):
    """By FP32, slot by slot."""
    rows = torch.cat([y, y.new_zeros(1, y.shape[1])]).float()
    exists = (positions >= 0) & (positions < len(y))
    at = torch.where(exists, positions, len(y)).long()
    shape = (*positions.shape[:-1], y.shape[1])
    out = torch.zeros(shape, device=y.device) if c is None else c.float()
    for j in range(positions.shape[-1]):
        terms = rows[at[..., j]]
        if weights is not None:
            terms = terms * weights[..., j, None]
        out = torch.where(exists[..., j, None], out + terms, out)
    return out.to(out_dtype or y.dtype)


def combine_gradient(gradient, y, positions):
    valid = (positions >= 0) & (positions < len(y))
    if len(y) == 0:
        return torch.zeros(positions.shape, device=y.device)
    rows = y.double()[torch.where(valid, positions, 0).long()]
    return ((gradient.double()[..., None, :] * rows).sum(-1) * valid).float()


def activation_dots(gradient, h, positions):
    """h: activation(x), in FP64."""
    valid = (positions >= 0) & (positions < len(h))
    if len(h) == 0:
        return torch.zeros(positions.shape, device=h.device)
    dots = (gradient.double() * h).sum(-1)
    return torch.where(valid, dots[torch.where(valid, positions, 0).long()], 0).float()
