"""A small causal language model on Python's own library, planned and trained: ``python train.py``."""

import argparse
import ast
import dataclasses
import inspect
import tempfile
import typing

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from memplan.integrations.transformers import MemplanCallback, tune

LONGEST = 512
PADDING = 0  # no byte of a text is 0


def make_model():
    """Make a Llama of 1.1 million parameters that reads bytes; nothing is downloaded."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=LONGEST,
        )
    )


def read_paragraphs(count):
    """Return paragraphs of the standard library's source, one a sample: from a few to LONGEST bytes."""
    texts = (inspect.getsource(module) for module in (argparse, ast, dataclasses, inspect, typing))
    paragraphs = [paragraph.encode()[:LONGEST] for text in texts for paragraph in text.split("\n\n")]
    return [{"input_ids": list(each)} for each in paragraphs if each][:count]


def collate(samples):
    """Pad to the longest sample; padding is no target."""
    width = max(len(each["input_ids"]) for each in samples)
    rows = [each["input_ids"] + [PADDING] * (width - len(each["input_ids"])) for each in samples]
    ids = torch.tensor(rows)
    labels = ids.masked_fill(ids == PADDING, -100)
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": labels}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--budget", default="1.5GiB")
    parser.add_argument("--precision", nargs="*")
    options = parser.parse_args()
    dataset = read_paragraphs(options.samples)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            learning_rate=5e-4,
            num_train_epochs=options.epochs,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=10,
        )
        args, plan = tune(
            args,
            model_init=make_model,
            train_dataset=dataset,
            data_collator=collate,
            budget=options.budget,
            precision=options.precision,
        )
        print(*plan.reasons, sep="\n")
        trainer = Trainer(
            args=args,
            model_init=make_model,
            train_dataset=dataset,
            data_collator=collate,
            callbacks=[MemplanCallback(plan)],
        )
        result = trainer.train()
    precision = "bf16" if args.bf16 else "fp32"
    print(f"batch {args.per_device_train_batch_size} in {precision}, rate {args.learning_rate:g}: ", end="")
    print(f"loss {result.training_loss:.3f} over {result.global_step} steps")


if __name__ == "__main__":
    main()
