"""Frameworks' own training steps on a card: what memplan moves there stays there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch

from memplan.recipe import Precision

transformers = pytest.importorskip("transformers", reason="needs memplan[transformers]")
pytest.importorskip("accelerate", reason="needs memplan[transformers]")

from memplan.integrations.transformers import tune  # noqa: E402 - after it is known that it is there

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child may find another package called tests


def make_model() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=1024, n_positions=64, n_embd=64, n_layer=2, n_head=2)
    )


def test_a_trainers_step_is_tried_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WeighsTokens(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return model(**inputs).logits.mean() * torch.ones((), device=self.args.device)

    monkeypatch.chdir(tmp_path)
    arguments = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=2, report_to="none")
    rows = [{"input_ids": [1] * 64, "labels": [1] * 64}] * 8
    planned, plan = tune(
        arguments,
        model_init=make_model,
        train_dataset=rows,
        trainer_class=WeighsTokens,
        device="cuda:0",
        budget="4GiB",
        precision=["fp32"],
    )
    assert plan.recipe.precision is Precision.FP32
    assert planned.per_device_train_batch_size == plan.recipe.micro_batch_size > 2
