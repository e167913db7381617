"""Any order of writes, passes, saves, loads, conversions and restores: each pass gives the bits of
functions of weights that are kept apart, which keep nothing."""

import copy
import io
import pickle
import tempfile

import octofold
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.python.nn.layer_support import NAMES, WRITES, random

pytest.importorskip("safetensors")

pytestmark = pytest.mark.slow

nn, models = octofold.nn, octofold.models

IN, INNER = 96, 64


def new_model():
    return torch.nn.Sequential(
        torch.nn.Linear(IN, INNER), torch.nn.GELU(), torch.nn.Linear(INNER, IN)
    )


def by_torch_save(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file)


class Orders(RuleBasedStateMachine):
    @initialize(seed=some.integers(0, 99), recipe=some.sampled_from(NAMES))
    def begin(self, seed, recipe):
        torch.manual_seed(seed)
        self.model, self.recipe = new_model(), None
        self.truth = [p.detach().clone() for p in self.model.parameters()]
        self.convert(recipe)

    @rule(layer=some.sampled_from([0, 2]), way=some.sampled_from(sorted(WRITES)))
    def write(self, layer, way):
        weight = self.model[layer].weight
        WRITES[way](weight)
        weight.data.mul_(-0.5)
        weight.data[0, 0] += 0.25
        self.truth[layer].neg_()[0, 0] += 0.25

    @rule(recipe=some.sampled_from([*NAMES, None]))
    def convert(self, recipe):
        nn.restore(self.model)
        if recipe is not None:
            nn.convert(self.model, recipe)
        self.recipe = recipe

    @rule(assign=some.booleans(), empty=some.booleans())
    def save_and_load(self, assign, empty):
        state = by_torch_save(self.model)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        if empty:
            self.model.to("meta").to_empty(device="cpu")
        self.model.load_state_dict(state, assign=assign)

    @rule(way=some.sampled_from([copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]))
    def copy(self, way):
        self.model = way(self.model)

    @rule(rows=some.integers(1, 70), kept=some.booleans())
    def pass_both_ways(self, rows, kept):
        xs = [random(rows, IN).requires_grad_() for _ in range(2)]
        if kept:
            with nn.keep_casts(self.model):
                actual = [self.results(x) for x in xs]
        else:
            actual = [self.results(x) for x in xs]
        for x, results in zip(xs, actual, strict=True):
            for left, right in zip(results, self.expected(x), strict=True):
                assert torch.equal(left, right)

    @rule()
    def answer(self):
        x = random(5, IN)
        with torch.no_grad():
            y = self.model(x)
        assert torch.equal(y, self.expected(x.requires_grad_())[0])

    @rule(granularity=some.sampled_from(["128x128", "channel"]))
    def keep_codes(self, granularity):
        """A copy keeps codes of the weights as they are, in a file and back."""
        other = nn.restore(copy.deepcopy(self.model))
        nn.convert_weight_only(other, granularity)
        with tempfile.TemporaryDirectory() as folder:
            models.save(other, f"{folder}/kept")
            loaded = models.load(new_model(), f"{folder}/kept")
        for layer in (0, 2):
            codes = octofold.quantize(self.truth[layer], granularity)
            kept = loaded[layer].weight.codes
            assert torch.equal(kept.view(torch.uint8), codes.data.view(torch.uint8))

    def results(self, x):
        y = self.model(x)
        parameters = self.model.parameters()
        return [y, *torch.autograd.grad(y.square().sum(), (x, *parameters))]

    def expected(self, x):
        leaves = [tensor.clone().requires_grad_() for tensor in self.truth]
        linear = torch.nn.functional.linear
        if self.recipe is not None:

            def linear(*operands):
                return octofold.linear(*operands, self.recipe)

        y = linear(torch.nn.functional.gelu(linear(x, *leaves[:2])), *leaves[2:])
        return [y, *torch.autograd.grad(y.square().sum(), (x, *leaves))]


TestAnyOrder = Orders.TestCase
TestAnyOrder.settings = settings(
    max_examples=40, stateful_step_count=50, suppress_health_check=list(HealthCheck)
)
