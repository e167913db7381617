"""Products whose rows are gathered from all ranks, the gather first and behind the product:

    torchrun --nproc-per-node 2 bench/gpu/parallel_products.py
    torchrun --nproc-per-node 2 bench/gpu/parallel_products.py --rows 8192 --rounds 30
    torchrun --nproc-per-node 1 bench/gpu/parallel_products.py

Each rank has M / ranks rows of A, e4m3 with scales of 1x128, and weights [N, K] with scales of
128x128; all want A · Wᵀ of all rows. The table has microseconds, the median of rounds, of the
slowest rank:

    product     of rows that are there
    in order    the same, walked in the order of shards, with all flags set
    gather      by NCCL, codes and scales
    one, two    gather by NCCL, then the product
    copies      gather by copy engines over symmetric memory, then the product
    overlapped  GatheredProduct: the product begins while copy engines bring the rows
    hidden      the part of the gather that no longer shows: 1 if overlapped takes as long as the
                product
    gain        one, two, or copies, whichever is faster, over overlapped

With one process: "product", and "in order" of so many shards.

Results of "overlapped" have to have the bits of "in order", in each round, with other rows in each:
the exit code is 1 otherwise. NVLink multicast stays off.
"""

import argparse
import os
import statistics
import sys
from functools import partial

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import octofold
import torch
import torch.distributed as dist
from octofold.distributed import GatheredProduct

ROWS = (4096, 8192, 16384)
# N of a rank, and K: Llama 3 70B's gate and up, and down, halved; DeepSeek-V3's.
WEIGHTS = ((14336, 8192), (8192, 14336), (7168, 2048), (2112, 7168))
CALLS = 8  # in a row, so that the host is ahead
SHARDS = (1, 2, 4, 8)  # on one GPU
COLUMNS = ("product", "in order", "gather", "one, two", "copies", "overlapped")


def pair(text):
    n, k = text.split(",")
    return int(n), int(k)


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="M, of all ranks")
    parser.add_argument("--weights", type=pair, nargs="+", default=WEIGHTS, metavar="N,K")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


class Gather:
    """By NCCL: codes, and scales that end with rows next to each other."""

    def __init__(self, shard, ranks):
        rows, columns = shard.shape
        self._ranks = ranks
        self._codes = torch.empty(ranks * rows, columns, dtype=torch.uint8, device="cuda")
        self._scale = torch.empty(ranks, shard.scale.shape[1], rows, device="cuda")

    def __call__(self, shard):
        dist.all_gather_into_tensor(self._codes, shard.data.view(torch.uint8))
        dist.all_gather_into_tensor(self._scale.flatten(0, 1), shard.scale.T)
        scale = self._scale.transpose(0, 1).reshape(self._scale.shape[1], -1).T
        return octofold.ScaledTensor(self._codes.view(shard.data.dtype), scale, "1x128")


def microseconds(call):
    """Of one of several calls in a row, on the slowest rank."""
    torch.cuda.synchronize()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()  # ranks are together, and the host is ahead
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    time = torch.tensor(1e3 * begin.elapsed_time(end) / CALLS, device="cuda")
    dist.all_reduce(time, dist.ReduceOp.MAX)
    return float(time)


def there(shards, own=0):
    return octofold.Arrivals(torch.ones(shards, dtype=torch.int32, device="cuda"), own)


def check(product, w, m, k, rank, ranks):
    """Calls in a row, with rows that are others in each: none may be of the call before."""
    generator = torch.Generator("cuda").manual_seed(0)
    all_rows = [torch.randn(m, k, generator=generator, device="cuda").bfloat16() for _ in range(5)]
    own = slice(rank * m // ranks, (rank + 1) * m // ranks)
    results = [product(x[own], w) for x in all_rows]
    results += [product(octofold.quantize(x[own]), w) for x in all_rows]
    arrivals = there(ranks, rank)
    expected = [octofold.gemm(octofold.quantize(x), w, arrivals=arrivals) for x in all_rows]
    return all(
        torch.equal(y.view(torch.int16), e.view(torch.int16))
        for y, e in zip(results, 2 * expected, strict=True)
    )


def measure_alone(m, n, k, rounds):
    """On one GPU: what the order costs."""
    w = octofold.quantize(torch.randn(n, k, device="cuda"), "128x128")
    whole = octofold.quantize(torch.randn(m, k, device="cuda"))
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    calls = {"product": lambda: octofold.gemm(whole, w, out=out)}
    for shards in SHARDS:
        arrivals = there(shards, shards // 2)
        calls[f"in {shards}"] = partial(octofold.gemm, whole, w, arrivals=arrivals, out=out)
    return medians(calls, rounds)


def medians(calls, rounds):
    times = {name: [] for name in calls}
    for _ in range(rounds):  # by turns, so that a clock that changes changes all
        for name, call in calls.items():
            times[name].append(microseconds(call))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(m, n, k, rounds):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    product = GatheredProduct(m // ranks, k, overlap=True)
    w = octofold.quantize(torch.randn(n, k, device="cuda"), "128x128")
    right = torch.tensor(int(check(product, w, m, k, rank, ranks)), device="cuda")
    dist.all_reduce(right, dist.ReduceOp.MIN)
    shard = octofold.quantize(torch.randn(m // ranks, k, device="cuda"))
    gather = Gather(shard, ranks)
    whole = gather(shard)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    arrivals = there(ranks, rank)
    overlapped = product._overlapped

    def by_copies():
        rows, _ = overlapped.begin(shard)
        overlapped.end()
        octofold.gemm(rows, w, out=out)

    calls = {
        "product": lambda: octofold.gemm(whole, w, out=out),
        "in order": lambda: octofold.gemm(whole, w, arrivals=arrivals, out=out),
        "gather": lambda: gather(shard),
        "one, two": lambda: octofold.gemm(gather(shard), w, out=out),
        "copies": by_copies,
        "overlapped": lambda: product(shard, w, out=out),
    }
    times = medians(calls, rounds)
    dist.barrier()  # before memory goes that others read
    return bool(right), times


def texts(times):
    return "".join(f"{time:12.0f}" for time in times.values())


def judged(times):
    """What of the gather is hidden, and what is gained over the better way to gather first."""
    first, overlapped = min(times["one, two"], times["copies"]), times["overlapped"]
    shows = first - times["product"]
    hidden = (first - overlapped) / shows if shows > 0 else 0
    return f"{hidden:12.2f}{first / overlapped:12.3f}"


def main():
    options = parsed()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    ranks = dist.get_world_size()
    titles = (*COLUMNS, "hidden", "gain", "bits")
    if ranks == 1:
        titles = ("product", *(f"in {shards}" for shards in SHARDS))
    if rank == 0:
        print(f"{ranks} × {torch.cuda.get_device_name()}, µs", flush=True)
        print(f"{'M,N,K':>18}{''.join(f'{title:>12}' for title in titles)}", flush=True)
    wrong = False
    for n, k in options.weights:
        for m in options.rows:
            if ranks == 1:
                line = texts(measure_alone(m, n, k, options.rounds))
            else:
                right, times = measure(m, n, k, options.rounds)
                wrong = wrong or not right
                line = texts(times) + judged(times) + f"{'same' if right else 'OTHER':>12}"
            if rank == 0:
                print(f"{f'{m},{n},{k}':>18}{line}", flush=True)
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
