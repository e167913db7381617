"""FP8 linear layers, casts counted, beside BF16 and torchao, measured in one run:

    python tests/gpu/bench_linear.py linear.jsonl
    python tests/gpu/bench_linear.py linear.jsonl --sections layers block --seconds 300
    python tests/gpu/bench_linear.py linear.jsonl --sections layers --recipes blockwise --no-torchao
    python tests/gpu/bench_linear.py linear.jsonl --shape 4096,4096,4096 --passes both
    python tests/gpu/bench_linear.py linear.jsonl --sections inference
    python tests/gpu/bench_linear.py tiny.jsonl --device cpu --rounds 2      to try the script

Sections:
    layers     one layer, x BF16 [tokens, in] that requires a gradient, weights BF16 that are cast
               in every step: forward, forward + backward; FP8 also where the layer would choose
               BF16 itself
    products   the three products alone, of operands that are cast already
    block      a block of Llama-8B's, forward + backward, and the memory that its step takes
    inference  octofold.nn.InferenceLinear for 1 to 64 tokens, six N,K
    host       host time of an eager layer

All results are first compared with FP64 (the block's with FP32). Times are medians of rounds in
which all take turns, of CUDA graphs over operands that together are larger than the L2 cache, or,
where one call takes more than 2 ms, between events behind a call that is not timed; ± is half the
quartile range over the median. A way that fails or is wrong is left out and said; exit code 1 if it
was ours. Every result goes to the JSON-lines file as it comes; tables last.
"""

import argparse
import sys
from pathlib import Path

import torch
from linear_bench import block, host, inference, layers
from linear_bench.results import OutOfTime, Results
from linear_bench.ways import RECIPES, ways

SECTIONS = ("layers", "block", "inference", "host", "products")
SHAPES = ((8192, 4096, 4096), (16384, 14336, 4096), (16384, 28672, 8192))
TINY_SHAPES = ((256, 384, 256),)  # on a CPU


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("output", type=Path, help="a file for lines of JSON")
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    add("--shape", type=sizes, action="append", metavar="TOKENS,OUT,IN")
    add("--passes", nargs="+", choices=layers.PASSES, default=["forward", "both"])
    add("--layer", type=sizes, action="append", metavar="N,K", help="of inference")
    add("--tokens", type=int, nargs="+", help="of inference; default: 1 to 64")
    add("--block-tokens", type=int, metavar="TOKENS", help="of the block; default: 8192")
    add("--sequence", type=int, help="tokens of a sequence of the block; default: all")
    add("--no-torchao", action="store_true")
    add("--no-eager", action="store_true", help="Octofold under torch.compile only")
    add("--no-compiled", action="store_true", help="BF16 and Octofold eager only")
    add("--rounds", type=int, default=9)
    add("--seconds", type=float, default=540.0, help="then the rest is left out")
    add("--device", default="cuda", help="cpu: to try the script itself")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: expected at least 2")
    return options


def measure(section: str, options: argparse.Namespace, results: Results) -> None:
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    shapes = options.shape or (SHAPES if on_gpu else TINY_SHAPES)
    chosen = ways(
        options.recipes, not options.no_torchao, not options.no_eager, not options.no_compiled
    )
    if section == "layers":
        layers.measure_layers(shapes, chosen, options.passes, device, results)
    elif section == "products":
        layers.measure_products(shapes, options.recipes, device, results)
    elif section == "block":
        tokens = options.block_tokens or (8192 if on_gpu else 256)
        sequence = options.sequence or tokens
        size = block.LLAMA_8B if on_gpu else block.TINY
        chosen += block.fused_ways(options.recipes, not options.no_eager, not options.no_compiled)
        block.measure_block(size, tokens, sequence, chosen, device, results)
    elif section == "inference":
        few = options.layer or (inference.LAYERS if on_gpu else [(256, 256)])
        inference.measure_inference(few, options.tokens or inference.TOKENS, device, results)
    else:
        host.measure_host(options.recipes, device, results)


def main() -> int:
    options = parsed()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # all ways compile the same module's code
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    on_gpu = options.device.startswith("cuda")
    results = Results(options.output, options.seconds, options.rounds)
    results.begin(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        device=torch.cuda.get_device_name() if on_gpu else "CPU",
        arguments=sys.argv[1:],
    )
    try:
        for section in options.sections:
            measure(section, options, results)
    except OutOfTime:
        print(f"stopped after {options.seconds:.0f} s", flush=True)
    finally:
        results.show()
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
