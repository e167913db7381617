"""A small model, links and rates for tests of plans."""

from octofold_tool.parallel.links import Links
from octofold_tool.parallel.memory import STATES
from octofold_tool.parallel.models import model_of
from octofold_tool.parallel.rates import COMMITTED, load_rates
from octofold_tool.parallel.schemes import Scheme
from octofold_tool.parallel.steps import Planner, Settings

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 1024, 2048, 8, 4, 4096
DENSE = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
}
EXPERTS = {**DENSE, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
RATES = load_rates(COMMITTED)


def links(nvlink=450e9, network=50e9, per_host=4, latency=0.0):
    return Links(per_host, nvlink, network, latency, latency)


def planner(config=DENSE, gpus=16, tokens=2048, sequence=512, overlap=False, **link_options):
    settings = Settings(gpus, tokens, sequence, STATES["fp32"], 4.0, 2.0, overlap, 80e9)
    return Planner(model_of(config, "small"), links(**link_options), RATES, settings)


def scheme(gpus=16, tensor=1, shards=1, experts=1, micro_batches=1, recompute=False):
    return Scheme(gpus, tensor, shards, experts, micro_batches, recompute)
