"""octofold bench accuracy: its measures, its attention, and a run of models with random weights."""

import json
from types import SimpleNamespace

import numpy as np
import octofold
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from octofold_tool.accuracy import measures, models, variants  # noqa: E402  (import torch)


def test_an_estimate_is_a_ratio_of_sums_with_its_interval():
    assert measures.ratio([2, 6], [1, 3], np.exp) == pytest.approx([np.exp(2)] * 3)
    value, low, high = measures.ratio(np.repeat([0, 1], [100, 300]))
    deviation = np.sqrt(0.75 * 0.25 / 400)
    assert value == 0.75
    assert [low, high] == pytest.approx(value + deviation * np.array([-1.96, 1.96]), abs=0.005)
    assert measures.ratio([1, 5], [1, 3]).value == 1.5  # and not the mean of 1 and 5/3


def test_ranks():
    similarity = np.array([[0.9, 0.1, 0.2], [0.5, 0.5, 0.1], [0.3, 0.2, 0.1]])
    assert measures.reciprocal_ranks(similarity).tolist() == [1, 1 / 2, 1 / 3]
    left, right = np.array([[1, 2, 3, 4], [2, 1, 3, 4]]), np.array([[1, 5, 9, 99], [9, 1, 5, 99]])
    assert measures.spearman(left, right) == pytest.approx([1, 0.8])


@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 5), (False, None)])
def test_attention_sees_what_that_of_transformers_does(causal, window):
    q, k, v = (torch.randn(1, heads, 20, 16, dtype=torch.bfloat16) for heads in (4, 2, 2))
    out, _ = variants.attend(
        SimpleNamespace(is_causal=causal), q, k, v, None, scaling=0.3, sliding_window=window
    )
    behind = torch.arange(20)[:, None] - torch.arange(20)
    seen = ((behind >= 0) | (not causal)) & (behind < (window or 20))
    k, v = (x.to(torch.float8_e4m3fn).float() for x in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k, v, seen, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(out.float(), expected.transpose(1, 2), rtol=0.02, atol=0.02)


def test_a_run_of_small_models(run, monkeypatch, tmp_path):
    torch.manual_seed(0)
    size = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 256}
    size |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    of_gemma = transformers.Gemma3TextConfig(**size, num_key_value_heads=1, head_dim=64)
    gemma = transformers.Gemma3ForCausalLM(of_gemma)
    bert = transformers.BertModel(transformers.BertConfig(**size), add_pooling_layer=False)
    for name, model in {"gemma": gemma, "minilm": bert}.items():
        loaded = models.Loaded(name, model.eval(), lambda text: list(text.encode()[:64]))
        monkeypatch.setattr(models, f"load_{name}", lambda loaded=loaded: loaded)
    options = "--device", "cpu", "--units", "3", "--output-dir", str(tmp_path)
    assert run("bench", "accuracy", *options)[0] == 0
    assert not octofold.is_batch_invariant()
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert len((tmp_path / "accuracy.md").read_text().splitlines()) == 13
    about = json.loads((tmp_path / "accuracy.json").read_text())["models"]
    for model, measure, exact in ("gemma", "change, %", 0), ("minilm", "Spearman", 1):
        assert about[model]["units"] == 3
        assert about[model]["estimates"]["FP32"][measure] == [exact] * 3
    # No two of these compute the same numbers: each did convert the model.
    changes = {x["change, %"][0] for x in about["gemma"]["estimates"].values()}
    assert len(changes) >= len(variants.VARIANTS) - 1  # those with and without batch invariance
    pages = [torch.tensor([list(page.encode()[:64])]) for page in measures.Language(3).texts]
    nats = np.mean([gemma(input_ids=page, labels=page).loss.item() for page in pages])
    perplexity = about["gemma"]["estimates"]["FP32"]["perplexity"]
    assert perplexity[0] == pytest.approx(np.exp(nats), rel=1e-4)
