"""Single exchanges of a layer inside a host, as plans reckon them: what a benchmark of such an
exchange can stand beside."""

from .exchanges import Traffic, expert_exchanges, shard_exchanges, tensor_exchanges
from .links import Exchange, Links
from .models import Model
from .rates import COMMITTED, load_rates
from .schemes import Scheme
from .ways import BFLOAT16, FLOAT32, Way
from .work import Context


def gather_of_weights(model: Model, way: Way, links: Links, ranks: int) -> Exchange:
    """FSDP over so many ranks gathers the weights and vectors of one layer, of the first kind."""
    at = context_of(model, way, links, shards=ranks)
    return shard_exchanges(model.layers[0], at, backward=False)[Traffic.WEIGHTS]


def gather_of_inputs(model: Model, way: Way, links: Links, ranks: int, tokens: int) -> Exchange:
    """A tensor group gathers `tokens` rows of x, an equal part from each rank, for the first
    column-parallel layer."""
    linear = next(each for each in model.layers[0].linears if each.split == "column")
    at = context_of(model, way, links, tensor=ranks, tokens=tokens // ranks)
    return tensor_exchanges(linear, at, backward=False)[Traffic.INPUTS]


def dispatch_of_tokens(model: Model, way: Way, links: Links, ranks: int, tokens: int) -> Exchange:
    """Each rank sends `tokens` rows of x to the ranks that have their experts, and receives as
    many. Raises ValueError if the experts do not divide."""
    at = context_of(model, way, links, experts=ranks, tokens=tokens)
    return expert_exchanges(at)[Traffic.DISPATCH]


def context_of(
    model: Model,
    way: Way,
    links: Links,
    *,
    tensor: int = 1,
    shards: int = 1,
    experts: int = 1,
    tokens: int = 1,
) -> Context:
    """One scheme, and `tokens` of one GPU in one micro batch."""
    gpus = max(tensor * shards, experts)
    scheme = Scheme(gpus, tensor, shards, experts, micro_batches=1, recompute=False)
    rates = load_rates(COMMITTED)  # which no exchange depends on
    return Context(model, scheme, way, links, rates, tokens, tokens, FLOAT32, BFLOAT16)
