"""FP8 linear layers, casts counted, beside BF16 and torchao:

    python bench/gpu/linear.py linear.jsonl
    python bench/gpu/linear.py linear.jsonl --sections layers block --seconds 300
    python bench/gpu/linear.py linear.jsonl --sections layers --recipes blockwise --no-torchao
    python bench/gpu/linear.py linear.jsonl --shape 4096,4096,4096 --passes both
    python bench/gpu/linear.py linear.jsonl --sections inference
    python bench/gpu/linear.py tiny.jsonl --device cpu --rounds 2      to try the script

Sections:
    layers     one layer, x BF16 [tokens, in] that requires a gradient, weights BF16 that are cast
               in every step: forward, forward + backward; FP8 also where the layer would choose
               BF16 itself
    products   the three products alone, of operands that are cast already
    block      a block of Llama-8B's, forward + backward, and the memory that its step takes
    inference  octofold.nn.InferenceLinear for 1 to 64 tokens, six N,K
    host       host time of an eager layer

All results are first compared with FP64 (the block's with FP32). A variant that fails or is wrong
is left out and said; exit code 1 if it was ours.
"""

import sys

import torch
from common.operands import LAYERS
from common.run import Run, new_parser, sizes
from linear_layers import block, layers
from linear_layers.variants import RECIPES, variants

SECTIONS = ("layers", "block", "inference", "host", "products")
SHAPES = ((8192, 4096, 4096), (16384, 14336, 4096), (16384, 28672, 8192))
TINY_SHAPES = ((256, 384, 256),)  # on a CPU
TOKENS = (1, 2, 4, 8, 16, 32, 64)


def parsed():
    parser = new_parser(__doc__, rounds=9, seconds=540)
    add = parser.add_argument
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    add("--shape", type=sizes, action="append", metavar="TOKENS,OUT,IN")
    add("--passes", nargs="+", choices=layers.PASSES, default=["forward", "both"])
    add("--layer", type=sizes, action="append", metavar="N,K", help="of inference")
    add("--tokens", type=int, nargs="+", default=TOKENS, help="of inference; default: 1 to 64")
    add("--block-tokens", type=int, metavar="TOKENS", help="of the block; default: 8192")
    add("--sequence", type=int, help="tokens of a sequence of the block; default: all")
    add("--no-torchao", action="store_true")
    add("--no-eager", action="store_true", help="Octofold under torch.compile only")
    add("--no-compiled", action="store_true", help="BF16 and Octofold eager only")
    return parser.parse_args()


def measure(section, options, run: Run) -> None:
    shapes = options.shape or (SHAPES if run.on_gpu else TINY_SHAPES)
    eager, compiled = not options.no_eager, not options.no_compiled
    chosen = variants(options.recipes, not options.no_torchao, eager, compiled)
    if section == "layers":
        layers.measure_layers(shapes, chosen, options.passes, run)
    elif section == "products":
        layers.measure_products(shapes, options.recipes, run)
    elif section == "block":
        tokens = options.block_tokens or (8192 if run.on_gpu else 256)
        size = block.LLAMA_8B if run.on_gpu else block.TINY
        chosen += block.fused_variants(options.recipes, eager, compiled)
        for size_ in run.cases([size]):
            block.measure_block(size_, tokens, options.sequence or tokens, chosen, run)
    elif section == "inference":
        few = options.layer or (LAYERS if run.on_gpu else [(256, 256)])
        layers.measure_inference(few, options.tokens, run)
    else:
        layers.measure_host(options.recipes, run)


def main() -> int:
    options = parsed()
    torch._dynamo.config.recompile_limit = 64  # all variants compile the same module's code
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    with Run(options) as run:
        for section in options.sections:
            measure(section, options, run)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
