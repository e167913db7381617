"""octofold bench accuracy: its measures, its attention, and a run of models with random weights."""

import gzip
import io
import json
import wave
from types import SimpleNamespace

import numpy as np
import octofold
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from octofold_tool.accuracy import measures, models, variants, whisper  # noqa: E402  (import torch)

SAID = ("Please press 1 now.", "...to leave, or to stay ...", "The number is, sadly, two!")


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


def test_whisper_is_read_from_model_bin():
    def number(size, value):
        return value.to_bytes(size, "little")

    def text(word):
        return number(2, len(word) + 1) + word.encode() + b"\0"

    def array(name, x):
        sizes = number(1, x.ndim) + b"".join(number(4, size) for size in x.shape)
        return text(name) + sizes + number(1, 4) + number(4, x.nbytes) + x.tobytes()

    rows = np.arange(12, dtype="<f2").reshape(6, 2)
    there = {
        "decoder/num_heads": rows[0, 0],
        "decoder/embeddings/weight": rows,
        "decoder/layer_3/attention/linear_1/weight": rows,
        "decoder/layer_3/attention/linear_1/bias": rows[:, 0],
        "encoder/layer_norm/beta": rows[0],
    }
    head = number(4, 6) + text("WhisperSpec") + number(4, 3) + number(4, len(there))
    data = b"".join(array(name, np.ascontiguousarray(x)) for name, x in there.items())
    found = whisper.parameters(io.BytesIO(head + data + number(4, 0)))
    attention = "model.decoder.layers.3.encoder_attn"
    assert {name: x.tolist() for name, x in found.items()} == {
        "model.decoder.embed_tokens.weight": rows.tolist(),
        "proj_out.weight": rows.tolist(),
        f"{attention}.k_proj.weight": rows[:3].tolist(),
        f"{attention}.v_proj.weight": rows[3:].tolist(),
        f"{attention}.v_proj.bias": rows[3:, 0].tolist(),
        "model.encoder.layer_norm.bias": rows[0].tolist(),
    }


@pytest.fixture
def recordings(monkeypatch, tmp_path):
    """A second of noise for each line of a script: one is no speech, and one has too few words."""
    lines = [
        f"{i}: {said}" for i, said in enumerate((*SAID, "[a very long beep]", "So long. Bye."))
    ]
    (tmp_path / "script.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    for i in range(len(lines)):
        with wave.open(str(tmp_path / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.random.default_rng(i).integers(-9000, 9000, 8000, "<i2").tobytes())
    monkeypatch.setattr(measures, "SPEECH", tmp_path)
    monkeypatch.setattr(measures, "SCRIPT", tmp_path / "script.gz")


def test_word_errors(recordings):
    task = measures.Speech(9)
    said = [words for words, _ in task.texts]
    assert sorted(said) == ["please press one now", "the number is sadly 2", "to leave or to stay"]
    answers = [x.replace("press", "oppress").removesuffix(" sadly 2") for x in said]
    errors, change, same = task.judge(answers, said).values()
    assert errors == change
    assert [errors.value, same.value] == pytest.approx([300 / 14, 100 / 3])


def test_a_run_of_small_models(run, recordings, monkeypatch, tmp_path):
    torch.manual_seed(0)
    size = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 256}
    size |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    of_gemma = transformers.Gemma3TextConfig(**size, num_key_value_heads=1, head_dim=64)
    gemma = transformers.Gemma3ForCausalLM(of_gemma)
    bert = transformers.BertModel(transformers.BertConfig(**size), add_pooling_layer=False)
    parts = {"layers": 1, "attention_heads": 2, "ffn_dim": 256}
    parts = {f"{side}_{key}": parts[key] for side in ("encoder", "decoder") for key in parts}
    most = {"max_source_positions": 50, "max_target_positions": 12, "pad_token_id": 255}
    of_whisper = transformers.WhisperConfig(d_model=128, vocab_size=256, **parts, **most)
    speech = transformers.WhisperForConditionalGeneration(of_whisper)
    ends = dict.fromkeys(("eos_token_id", "pad_token_id"), 255)
    ids = {
        "decoder_start_token_id": 254,
        "no_timestamps_token_id": 253,
        "lang_to_id": {"<|en|>": 0},
    }
    speech.generation_config = transformers.GenerationConfig(
        **ends, **ids, task_to_id={"transcribe": 1}, is_multilingual=True, max_length=12
    )
    loaders = {
        "gemma": (gemma, lambda text: list(text.encode()[:64])),
        "minilm": (bert, lambda text: list(text.encode()[:64])),
        "whisper": (speech, lambda sound: torch.tensor(sound[:8000]).reshape(1, 80, 100)),
    }
    for name, (model, encode) in loaders.items():
        loaded = models.Loaded(name, model.eval(), encode)
        monkeypatch.setattr(models, f"load_{name}", lambda loaded=loaded: loaded)
    options = "--device", "cpu", "--units", "3", "--output-dir", str(tmp_path)
    assert run("bench", "accuracy", *options)[0] == 0
    assert not octofold.is_batch_invariant()
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert len((tmp_path / "accuracy.md").read_text().splitlines()) == 13
    about = json.loads((tmp_path / "accuracy.json").read_text())["models"]
    exact_measures = ("gemma", "change, %", 0), ("minilm", "Spearman", 1)
    for model, measure, exact in (*exact_measures, ("whisper", "same words, %", 100)):
        assert about[model]["units"] == 3
        assert about[model]["estimates"]["FP32"][measure] == [exact] * 3
    # No two of these compute the same numbers: each did convert the model.
    changes = {x["change, %"][0] for x in about["gemma"]["estimates"].values()}
    assert len(changes) >= len(variants.VARIANTS) - 1  # those with and without batch invariance
    pages = [torch.tensor([list(page.encode()[:64])]) for page in measures.Language(3).texts]
    nats = np.mean([gemma(input_ids=page, labels=page).loss.item() for page in pages])
    perplexity = about["gemma"]["estimates"]["FP32"]["perplexity"]
    assert perplexity[0] == pytest.approx(np.exp(nats), rel=1e-4)
