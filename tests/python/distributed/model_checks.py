"""Models of transformers, converted and split over ranks: what the ranks run."""

import copy

import octofold
import torch
from octofold.distributed import parallelize
from tensor_parallel_checks import mesh_of_all
from torch.distributed.tensor import DTensor

SIZES = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}


def model_of(kind, **options):
    import transformers

    torch.manual_seed(3)
    if kind == "llama":
        config = transformers.LlamaConfig(**SIZES, **options)
        model = transformers.LlamaForCausalLM(config)
    elif kind == "qwen3_moe":
        sizes = SIZES | {"moe_intermediate_size": 256, "num_experts": 4}
        # All of them, as which ones are best turns on the last bits of what is routed.
        sizes["num_experts_per_tok"] = 4
        config = transformers.Qwen3MoeConfig(**sizes, **options)
        model = transformers.Qwen3MoeForCausalLM(config)
    return model.to(torch.bfloat16)


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def like_one_process(rank, kind, recipe="blockwise", options=(), **kinds):
    """Loss and gradients are as good as those of the converted model in one process. They differ
    by as much as FP8 makes of other last bits."""
    model = model_of(kind, **dict(options))
    exact = copy.deepcopy(model).float()
    alone, parallel = copy.deepcopy(model), copy.deepcopy(model)
    if kind == "qwen3_moe":
        octofold.nn.convert_experts(alone, recipe)
    octofold.nn.convert(alone, recipe, force_fp8=True)
    report = parallelize(parallel, mesh_of_all(), recipe=recipe, **kinds)
    assert report.model is parallel
    ids = torch.arange(2 * 512).view(2, 512) * 7 % 256
    loss, own_loss = loss_of(alone, ids), loss_of(parallel, ids)
    loss.backward()
    own_loss.backward()
    loss_of(exact, ids).backward()
    truth = {name: parameter.grad for name, parameter in exact.named_parameters()}
    assert abs(loss.item() - own_loss.item()) < 0.02, (loss, own_loss)
    wanted = dict(alone.named_parameters())
    found = dict(parallel.named_parameters())
    assert list(found) == list(wanted)
    assert list(parallel.state_dict()) == list(alone.state_dict())
    worst = 0.0
    for name, parameter in found.items():
        assert isinstance(parameter, DTensor), name
        assert torch.equal(parameter.full_tensor(), wanted[name]), name
        errors = [
            ((grad.float() - truth[name]).norm() / truth[name].norm()).item()
            for grad in (parameter.grad.full_tensor(), wanted[name].grad)
        ]
        # A few sums over all tokens scatter more than a matrix does.
        factor = 1.1 if parameter.dim() > 1 else 1.5
        assert errors[0] < factor * errors[1] + 0.005, (name, errors)
        worst = max(worst, errors[0])
    assert worst < 0.3, worst
    torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
    torch.optim.AdamW(parallel.parameters()).step()
    parallel.eval()
    with torch.no_grad():
        logits = parallel(input_ids=ids[:, :8], use_cache=False).logits
    assert logits.shape == (2, 8, 256)
    return repr(report), worst
