"""Experts over several GPUs: what each rank runs.

    torchrun --nproc-per-node 2 -m tests.gpu.expert_parallel_worker

It says "well" on rank 0 at the end, after the times. OCTOFOLD_TEST_DEVICE=cpu runs it on gloo.
"""

import os
from datetime import timedelta

import octofold
import torch
from octofold.distributed import experts, parallelize_experts

from tests.python.distributed import expert_problems as checks

ON_GPU = os.environ.get("OCTOFOLD_TEST_DEVICE", "cuda") == "cuda"
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")


checks.DEVICE = DEVICE


def as_in_one_process():
    """Each GPU computes all of it, too."""
    for recipe in ("blockwise", "rowwise", checks.BLOCKS, "tensorwise"):
        for options in ({}, {"capacity": 256}, {"halves": 2}, {"capacity": 256, "halves": 2}):
            for wire in ("fp8", "input"):
                tokens = [130, 0, 77, 200, 5, 64, 1, 33][:SIZE]
                p = checks.problem(tokens, bias=True)
                own, rows, experts_ = p.part(RANK)
                whole = checks.step(octofold.experts, p, recipe=recipe)
                wanted = checks.parts_of(whole, rows, experts_)
                actual = checks.step(experts, own, recipe=recipe, wire=wire, **options)
                limit = 0.13 if recipe == "tensorwise" else 0.06
                checks.compare(actual, wanted, [False] * 7, limit)
                if recipe != "tensorwise":
                    assert checks.error(actual[0], wanted[0]) < 0.004


def graphs():
    """Forward and backward with a capacity, replayed with other routing."""
    p, *_ = checks.problem([128] * SIZE).part(RANK)
    for halves in (1, 2):
        options = {"capacity": 128, "halves": halves}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                checks.step(experts, p, **options)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = checks.step(experts, p, **options)
        for seed in range(5):
            g = torch.Generator().manual_seed(seed * SIZE + RANK)
            scores = torch.rand((128, checks.EXPERTS), generator=g)
            p.ids.copy_(scores.topk(checks.SLOTS, dim=1)[1].int())
            p.x.copy_(torch.randn(p.x.shape, generator=g).to(p.x.dtype))
            graph.replay()
            actual = [t.clone() for t in results]
            wanted = checks.step(experts, p, **options)
            checks.compare(actual, wanted, [True] * 5, 0)


def drops():
    """Rows that find no room are counted, and nothing waits."""
    p, *_ = checks.problem([64] * SIZE, gone=0).part(RANK)
    counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    run = (p.x, p.ids, p.weights, p.w13, p.w2)
    with torch.no_grad():
        experts(*run, capacity=7, dropped=counter)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        experts(*run, capacity=7, dropped=counter)
        torch.cuda.set_sync_debug_mode("default")
    assert counter.item() > 0


def errors():
    tokens = [24] * SIZE
    for kind in ["recipe", "k", "dtype", "experts", "shape", "wire", "gradient"]:
        assert checks.disagreement(RANK, tokens, kind) == "InvalidArgumentError"


def times():
    """Times a block of Qwen3-30B-A3B's sizes, forward and backward, by events."""
    hidden, inner, count, k, tokens = 2048, 768, 128, 8, 8192
    torch.manual_seed(0)
    options = {"device": DEVICE, "dtype": torch.bfloat16}
    x = torch.randn((tokens, hidden), **options)
    dy = torch.randn((tokens, hidden), **options)
    for shared in (None, 4 * inner):
        for how in (
            {"wire": "input"},
            {},
            {"halves": 2},
            {"capacity": tokens, "local_rows": 90000},
        ):
            torch.manual_seed(0)
            block = octofold.nn.MixtureOfExperts(hidden, inner, count, k, shared, **options)
            parallelize_experts(block, **how)

            def step(block=block):
                block.zero_grad()
                leaf = x.detach().requires_grad_()
                block(leaf).backward(dy)

            for _ in range(3):
                step()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.distributed.barrier()
            begin.record()
            for _ in range(10):
                step()
            end.record()
            torch.cuda.synchronize()
            if RANK == 0:
                print(f"shared {shared}, {how}: {begin.elapsed_time(end) / 10:.3f} ms", flush=True)


def main():
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    backend = "nccl" if ON_GPU else "gloo"
    torch.distributed.init_process_group(backend, timeout=timedelta(seconds=60))
    checks_of_gpus = (drops, graphs, times) if ON_GPU else ()
    for check in (as_in_one_process, errors, *checks_of_gpus):
        check()
        torch.distributed.barrier()
        if RANK == 0:
            print(f"{check.__name__}: well", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
