"""Products whose rows are gathered from all ranks, the gather first and behind the product:

    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_products RESULTS.jsonl
    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_products RESULTS.jsonl --rows 8192

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
    over it     overlapped over product

Results of "overlapped" have to have the bits of "in order", in each round, with other rows in each.
"""

import octofold
import torch
import torch.distributed as dist
from common.ranks import interleaved
from common.run import sizes, text_of
from octofold.distributed import GatheredProduct

ROUNDS, SECONDS, ON_RANKS = 15, 540, True
ROWS = (4096, 8192, 16384)
# N of a rank, and K: Llama 3 70B's gate and up, and down, halved; DeepSeek-V3's.
WEIGHTS = ((14336, 8192), (8192, 14336), (7168, 2048), (2112, 7168))
CALLS = 8  # in a row, so that the host is ahead
COLUMNS = ("product", "in order", "gather", "one, two", "copies", "overlapped")


def add_options(parser):
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="M, of all ranks")
    parser.add_argument("--weights", type=sizes, nargs="+", default=WEIGHTS, metavar="N,K")


def cases(run):
    titles = (*COLUMNS, "hidden", "gain", "over it")
    run.line(f"{'M,N,K':>18}{''.join(f'{title:>12}' for title in titles)}")
    return [(m, n, k) for n, k in run.options.weights for m in run.options.rows]


def measure(run, shape):
    times = measure_on_ranks(run, *shape)
    texts = "".join(f"{time.median:12.0f}" for time in times.values())
    run.line(f"{text_of(shape):>18}{texts}{judged(times)}")
    for name, time in times.items():
        run.record("gathered product", case=text_of(shape), name=name, **time._asdict())


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


def measure_on_ranks(run, m, n, k):
    rank, ranks_ = dist.get_rank(), dist.get_world_size()
    product = GatheredProduct(m // ranks_, k, overlap=True)
    w = octofold.quantize(torch.randn(n, k, device="cuda"), "128x128")
    run.require(check(product, w, m, k, rank, ranks_), f"bits of {m},{n},{k}")
    shard = octofold.quantize(torch.randn(m // ranks_, k, device="cuda"))
    gather = Gather(shard, ranks_)
    whole = gather(shard)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    arrivals = there(ranks_, rank)
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
    times = interleaved(calls, run.rounds, CALLS)
    dist.barrier()  # before memory goes that others read
    return times


def judged(times):
    """Shows how much of the gather is hidden, what is gained over the better way to gather first,
    and what is left over the product alone."""
    product, one_two, copies, overlapped = (
        times[name].median for name in ("product", "one, two", "copies", "overlapped")
    )
    first = min(one_two, copies)
    hidden = (first - overlapped) / (first - product) if first > product else 0
    return f"{hidden:12.2f}{first / overlapped:12.3f}{overlapped / product:12.3f}"
