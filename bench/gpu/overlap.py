"""Products whose rows are gathered from all ranks, the gather first and behind the product:

    torchrun --nproc-per-node 2 bench/gpu/overlap.py
    torchrun --nproc-per-node 2 bench/gpu/overlap.py --rows 8192 --weights 7168,2048 --rounds 30

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

Results of "overlapped" have to have the bits of "in order", in each round, with other rows in each:
the exit code is 1 otherwise. NVLink multicast stays off.
"""

import argparse
import os
import statistics
import sys

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


def check(product, w, m, k, rank, ranks):
    """Rows that are others in each call: none may be of the call before."""
    flags = torch.ones(ranks, dtype=torch.int32, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(5):
        x = torch.randn(m, k, generator=generator, device="cuda").bfloat16()
        rows = x[rank * m // ranks : (rank + 1) * m // ranks]
        arrivals = octofold.Arrivals(flags, rank)
        expected = octofold.gemm(octofold.quantize(x), w, arrivals=arrivals)
        for given in (rows, octofold.quantize(rows)):
            if not torch.equal(product(given, w).view(torch.int16), expected.view(torch.int16)):
                return False
    return True


def measure(m, n, k, rounds):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    product = GatheredProduct(m // ranks, k, overlap=True)
    w = octofold.quantize(torch.randn(n, k, device="cuda"), "128x128")
    right = torch.tensor(check(product, w, m, k, rank, ranks), device="cuda")
    dist.all_reduce(right, dist.ReduceOp.MIN)
    shard = octofold.quantize(torch.randn(m // ranks, k, device="cuda"))
    gather = Gather(shard, ranks)
    whole = gather(shard)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    arrivals = octofold.Arrivals(torch.ones(ranks, dtype=torch.int32, device="cuda"), rank)
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
    times = {name: [] for name in calls}
    for _ in range(rounds):  # by turns, so that a clock that changes changes all
        for name, call in calls.items():
            times[name].append(microseconds(call))
    return bool(right), {name: statistics.median(values) for name, values in times.items()}


def main():
    options = parsed()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    if rank == 0:
        print(f"{dist.get_world_size()} × {torch.cuda.get_device_name()}, µs", flush=True)
        titles = "".join(f"{name:>12}" for name in (*COLUMNS, "hidden", "gain", "bits"))
        print(f"{'M,N,K':>18}{titles}", flush=True)
    wrong = False
    for n, k in options.weights:
        for m in options.rows:
            right, times = measure(m, n, k, options.rounds)
            wrong = wrong or not right
            first = min(times["one, two"], times["copies"])
            gathers = first - times["product"]
            hidden = (first - times["overlapped"]) / gathers if gathers > 0 else 0
            line = "".join(f"{times[name]:12.0f}" for name in COLUMNS)
            line += f"{hidden:12.2f}{first / times['overlapped']:12.3f}"
            if rank == 0:
                print(f"{f'{m},{n},{k}':>18}{line}{'same' if right else 'OTHER':>12}", flush=True)
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
