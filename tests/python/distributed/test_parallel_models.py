"""Models of transformers, converted and split over ranks by their own tp_plan."""

import copy

import octofold
import pytest
import torch
from octofold.distributed import parallelize
from torch.distributed.tensor import DTensor

from tests.python.distributed.beside_one_process import full_tensor, mesh_of_all
from tests.python.distributed.rank_processes import DEVICE, here, on_ranks

transformers = pytest.importorskip("transformers")

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
    torch.manual_seed(3)
    if kind == "llama":
        config = transformers.LlamaConfig(**SIZES | options)
        model = transformers.LlamaForCausalLM(config)
    elif kind == "qwen3_moe":
        sizes = SIZES | {"moe_intermediate_size": 256, "num_experts": 4}
        # All of them, as which ones are best turns on the last bits of what is routed.
        sizes["num_experts_per_tok"] = 4
        config = transformers.Qwen3MoeConfig(**sizes | options)
        model = transformers.Qwen3MoeForCausalLM(config)
    return here(model.to(torch.bfloat16))


def splits_embedding(kind):
    """True if the model's own plan splits it, which depends on the version of transformers."""
    return any(name.endswith("embed_tokens") for name in model_of(kind).tp_plan)


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def like_one_process(rank, kind, **options):
    """Loss and gradients are as good as those of the converted model in one process. They differ
    by as much as FP8 makes of other last bits."""
    model = model_of(kind)
    exact = copy.deepcopy(model).float()
    alone, parallel = copy.deepcopy(model), copy.deepcopy(model)
    if kind == "qwen3_moe":
        octofold.nn.convert_experts(alone)
    octofold.nn.convert(alone, force_fp8=True)
    report = parallelize(parallel, mesh_of_all(), **options)
    assert report.model is parallel
    ids = here(torch.arange(2 * 512).view(2, 512) * 7 % 256)
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
        assert torch.equal(full_tensor(parameter), wanted[name]), name
        errors = [
            ((grad.float() - truth[name]).norm() / truth[name].norm()).item()
            for grad in (full_tensor(parameter.grad), wanted[name].grad)
        ]
        # A few sums over all tokens scatter more than a matrix does.
        factor = 1.2 if parameter.dim() > 1 else 1.5
        assert errors[0] < factor * errors[1] + 0.005, (name, errors)
        worst = max(worst, errors[0])
    assert worst < 0.3, worst
    torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
    torch.optim.AdamW(parallel.parameters()).step()
    parallel.eval()
    with torch.no_grad():
        logits = parallel(input_ids=ids[:, :8], use_cache=False).logits
    assert logits.shape == (2, 8, 256)
    return repr(report)


@pytest.mark.parametrize(
    ("kind", "sequence_parallel"),
    [
        ("llama", True),
        ("qwen3_moe", False),
        pytest.param("llama", False, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", True, marks=pytest.mark.slow),
    ],
)
def test_like_one_process(processes, kind, sequence_parallel):
    options = {"sequence_parallel": sequence_parallel}
    report = processes.run(like_one_process, kind, **options)[0]
    tokens = "input_layouts=S(1)" if sequence_parallel else ""
    assert f"octofold.nn.Linear, recipe=blockwise, ColumnParallel({tokens}): model.layers" in report
    if splits_embedding(kind):
        assert "torch.Embedding, torch's RowwiseParallel: model.embed_tokens" in report
    assert "torch.Linear (it is the output head), torch's ColwiseParallel: lm_head" in report
    assert "left alone: " not in report


@on_ranks
def test_tied_weights_stay_tied(rank):
    """The head that shares its weight with the embedding still does."""
    model = model_of("llama", tie_word_embeddings=True)
    parallelize(model, mesh_of_all(), recipe="rowwise", reduce_dtype=torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    ids = here(torch.arange(64).view(2, 32))
    loss_of(model, ids).backward()
    assert full_tensor(model.lm_head.weight.grad).isfinite().all()


@on_ranks
def test_converted_before(rank):
    """A model that is converted already is split as it is, with a plan of ours."""
    model = model_of("llama")
    octofold.nn.convert(model, "rowwise", lambda module, name: "mlp" in name)
    plan = {
        "model.layers.*.mlp.up_proj": "colwise",
        "model.layers.*.mlp.gate_proj": "colwise",
        "model.layers.*.mlp.down_proj": "rowwise",
    }
    report = parallelize(model, mesh_of_all(), plan, recipe=None)
    assert len(report.converted) == 6
    assert "all ranks have it" in report.left_alone["model.layers.0.self_attn.q_proj"]
    ids = here(torch.arange(64).view(2, 32))
    loss_of(model, ids).backward()
    assert all(isinstance(p.grad, DTensor) for p in model.parameters())


@on_ranks
def test_with_fsdp(rank):
    """FSDP2 over a model that is split: norms and routers are plain tensors to their modules."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    size = torch.distributed.get_world_size()
    mesh = init_device_mesh(DEVICE, (size // 2, 2), mesh_dim_names=("dp", "tp"))
    model = model_of("qwen3_moe")
    alone = copy.deepcopy(model)
    octofold.nn.convert_experts(alone)
    octofold.nn.convert(alone, force_fp8=True)
    parallelize(model, mesh["tp"], sequence_parallel=True)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    ids = here(torch.arange(size // 2 * 256).view(-1, 256) * 5 % 256)
    for _ in range(2):
        loss_of(alone, ids).backward()
        mine = ids[mesh["dp"].get_local_rank()][None]
        loss_of(model, mine).backward()
        for (name, wanted), found in zip(alone.named_parameters(), model.parameters(), strict=True):
            grad, own = wanted.grad.float(), full_tensor(found.grad).float()
            error = ((grad - own).norm() / grad.norm()).item()
            assert error < (0.3 if wanted.dim() > 1 else 0.5), (name, error)
        for some in (alone, model):
            torch.optim.SGD(some.parameters(), lr=0.01).step()
            some.zero_grad()


@on_ranks
def test_refusals(rank):
    mesh, model = mesh_of_all(), model_of("llama")
    for options, error, words in (
        ({"plan": {"model.none": "colwise"}}, octofold.InvalidArgumentError, "'plan'"),
        ({"plan": {"lm_head": "own"}}, octofold.UnsupportedError, "got 'own' for 'lm_head'"),
        ({"recipe": "mxfp8"}, octofold.InvalidArgumentError, "'recipe'"),
    ):
        with pytest.raises(error, match=words):
            parallelize(copy.deepcopy(model), mesh, **options)
    model = model_of("llama", num_key_value_heads=1)
    with pytest.raises(octofold.InvalidArgumentError, match="1 heads of 32 features"):
        parallelize(model, mesh)
    with pytest.raises(octofold.InvalidArgumentError, match="without one"):
        parallelize(torch.nn.Linear(4, 4), mesh)
    model = model_of("llama" if rank else "qwen3_moe")
    with pytest.raises(octofold.InvalidArgumentError, match="'model': expected the same on all"):
        parallelize(model, mesh)
