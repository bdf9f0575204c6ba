"""The training step of trials against the same step written out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from memplan import Recipe, Workload
from memplan.errors import WorkloadError
from memplan.probe.training_loop import (
    NO_MARKS,
    StepMarks,
    TrainingState,
    build_training,
    run_evaluation,
    run_optimizer_step,
)

CPU = torch.device("cpu")


def workload(**changes: Any) -> Workload:
    parts = {
        "model": lambda: torch.nn.Linear(4, 1, bias=False),
        "batch": lambda size: torch.randn(size, 4),
        "loss": lambda model, batch: model(batch).square().mean(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    }
    return Workload(**{**parts, **changes})


def build(made: Workload | None = None, **knobs: Any) -> TrainingState:
    configured = knobs.pop("configured_learning_rate", None)
    recipe = Recipe(**{"micro_batch_size": 8, **knobs})
    return build_training(made or workload(), recipe, CPU, seed=0, configured_learning_rate=configured)


def weight(state: TrainingState) -> torch.Tensor:
    return state.parameters()[0].detach().clone()


def small_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Stay below what half precision holds, even times the first scale of 65536."""
    return model(batch).float().square().mean() / 100


def test_a_step_is_what_a_plain_loop_does() -> None:
    state = build()
    by_hand = weight(state).requires_grad_()
    loss = (state.batch @ by_hand.T).square().mean()
    loss.backward()
    assert run_optimizer_step(state) == pytest.approx(loss.item())
    assert by_hand.grad is not None
    torch.testing.assert_close(weight(state), by_hand.detach() - 0.1 * by_hand.grad)


def tf32_flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def set_tf32_flags(in_products: bool, in_convolutions: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = in_products
    torch.backends.cudnn.allow_tf32 = in_convolutions


@pytest.fixture
def restored_tf32_flags() -> Any:
    before = tf32_flags()
    yield
    set_tf32_flags(*before)


@pytest.mark.usefixtures("restored_tf32_flags")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_no_flag_of_cuda_is_touched_on_the_cpu(precision: str) -> None:
    for is_allowed in (True, False):
        set_tf32_flags(is_allowed, not is_allowed)
        build(precision=precision)
        assert tf32_flags() == (is_allowed, not is_allowed)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "bf16-true", "fp16-true"])
def test_every_precision_starts_from_the_same_weights_and_batch(precision: str) -> None:
    reference, state = build(), build(precision=precision)
    assert torch.equal(state.batch, reference.batch)
    assert torch.equal(weight(state), weight(reference).to(weight(state).dtype))


def test_true_half_precision_takes_two_bytes_a_weight_and_runs() -> None:
    state = build(precision="bf16-true")
    assert weight(state).dtype is torch.bfloat16
    assert run_optimizer_step(state) > 0


@pytest.mark.parametrize(("precision", "channels_last"), [("bf16-true", False), ("fp32", True)])
def test_a_model_is_converted_before_it_moves_to_the_device(precision: str, channels_last: bool) -> None:
    steps: list[object] = []

    class Noting(torch.nn.Conv2d):
        def to(self, *args: Any, **kwargs: Any) -> Noting:
            steps.extend((*args, *kwargs.values()))
            return super().to(*args, **kwargs)

    made = replace(workload(), model=lambda: Noting(1, 1, 1), channels_last=channels_last)
    build(made, precision=precision)
    assert steps == [torch.channels_last if channels_last else torch.bfloat16, CPU]


def test_autocast_computes_in_half_and_keeps_the_weights() -> None:
    seen: list[torch.dtype] = []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        value = model(batch)
        seen.append(value.dtype)
        return value.float().square().mean()

    state = build(workload(loss=loss), precision="bf16")
    run_optimizer_step(state)
    assert seen == [torch.bfloat16]
    assert weight(state).dtype is torch.float32


def test_only_fp16_has_a_gradient_scaler_and_its_scale_does_not_change_the_step() -> None:
    plain, scaled = build(workload(loss=small_loss)), build(workload(loss=small_loss), precision="fp16")
    assert (plain.scaler, build(precision="bf16").scaler) == (None, None)
    assert scaled.scaler is not None
    run_optimizer_step(plain)
    run_optimizer_step(scaled)
    torch.testing.assert_close(weight(scaled), weight(plain), rtol=0.01, atol=1e-5)
    assert not torch.equal(weight(scaled), weight(build()))


def test_accumulation_adds_gradients_up_to_one_mean_step() -> None:
    once, thrice = build(), build(accumulation_steps=3)
    assert run_optimizer_step(thrice) == pytest.approx(run_optimizer_step(once))
    torch.testing.assert_close(weight(thrice), weight(once))


def test_gradients_are_resident_while_later_activations_are_made() -> None:
    state = build(accumulation_steps=2)
    had_gradients: list[bool] = []
    marks = replace(NO_MARKS, forward_starts=lambda: had_gradients.append(state.parameters()[0].grad is not None))
    run_optimizer_step(state, marks)
    assert had_gradients == [False, True]


def test_gradients_are_clipped_after_the_scale_is_taken_off() -> None:
    state = build(workload(grad_clip_norm=1e-4, loss=small_loss), precision="fp16")
    before = weight(state)
    run_optimizer_step(state)
    assert (weight(state) - before).norm().item() == pytest.approx(0.1 * 1e-4, rel=0.02)


def test_zeroed_gradients_stay_where_the_workload_keeps_them() -> None:
    seen: list[bool] = []
    for to_none in (True, False):
        state = build(workload(zero_grad_set_to_none=to_none))
        run_optimizer_step(state)
        marks = replace(NO_MARKS, forward_starts=lambda state=state: seen.append(state.parameters()[0].grad is None))
        run_optimizer_step(state, marks)
    assert seen == [True, False]


def test_the_moving_average_follows_the_weights_slowly() -> None:
    state = build(workload(ema=True))
    start = weight(state)
    run_optimizer_step(state)
    expected = start + 0.001 * (weight(state) - start)
    torch.testing.assert_close(state.moving_average["weight"], expected)


def rates_of(*rates: float | None, **knobs: Any) -> list[float | None]:
    """Learning rates of two groups after building."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD([{"params": [each]} for each in parameters], lr=1.0)
        for group, rate in zip(made.param_groups, rates, strict=True):
            group["lr"] = rate
        return made

    state = build(workload(model=lambda: torch.nn.Linear(4, 1), optimizer=optimizer), **knobs)
    return [group["lr"] for group in state.optimizer.param_groups]


@pytest.mark.parametrize(
    ("made", "expected"),
    [((1.0, 0.25), [2.0, 0.5]), ((0.25, 1.0), [0.5, 2.0]), ((0.0, 1.0), [0.0, 2.0]), ((None, 1.0), [None, 2.0])],
)
def test_every_group_is_scaled_as_the_recipe_is_to_the_config(made: Any, expected: list[float | None]) -> None:
    assert rates_of(*made, learning_rate=0.5, configured_learning_rate=0.25) == expected


@pytest.mark.parametrize("configured", [None, 0.5])
def test_rates_stay_where_the_recipe_does_not_differ_from_the_config(configured: float | None) -> None:
    assert rates_of(1.0, 0.25, learning_rate=0.5, configured_learning_rate=configured) == [1.0, 0.25]


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
def test_a_batch_that_asks_for_gradients_has_those_of_its_own_step_alone(precision: str) -> None:
    met = []

    def penalised(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        met.append((batch.requires_grad, batch.grad))
        return small_loss(model, batch)

    state = build(
        workload(batch=lambda size: torch.ones(size, 4).requires_grad_(), loss=penalised), precision=precision
    )
    run_optimizer_step(state)
    run_optimizer_step(state)
    assert met == [(True, None), (True, None)]


def test_channels_last_reaches_model_and_batch() -> None:
    seen: list[bool] = []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.is_contiguous(memory_format=torch.channels_last))
        return model(batch).mean()

    made = workload(
        model=lambda: torch.nn.Conv2d(2, 2, 3),
        batch=lambda size: torch.ones(size, 2, 8, 8),
        loss=loss,
        channels_last=True,
    )
    state = build(made)
    run_optimizer_step(state)
    assert seen == [True]
    assert state.parameters()[0].is_contiguous(memory_format=torch.channels_last)


class Pair(NamedTuple):
    rows: torch.Tensor
    labels: torch.Tensor


@dataclass
class Sample:
    rows: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize("kind", [Pair, Sample, lambda rows, labels: {"x": [rows, (labels, "name")]}])
def test_floating_point_leaves_of_any_batch_follow_the_weights_type(kind: Any) -> None:
    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        rows, labels = (batch["x"][0], batch["x"][1][0]) if isinstance(batch, dict) else (batch.rows, batch.labels)
        assert (rows.dtype, labels.dtype) == (torch.bfloat16, torch.int64)
        return model(rows).mean()

    made = workload(batch=lambda size: kind(torch.ones(size, 4), torch.ones(size, dtype=torch.int64)), loss=loss)
    run_optimizer_step(build(made, precision="bf16-true"))


def test_checkpointing_is_switched_on_by_the_models_own_method() -> None:
    class Switchable(torch.nn.Linear):
        is_on = False

        def gradient_checkpointing_enable(self) -> None:
            self.is_on = True

    state = build(workload(model=lambda: Switchable(4, 1)), activation_checkpointing=True)
    assert state.model.is_on is True


@pytest.mark.parametrize(
    ("changes", "knobs", "said"),
    [
        ({"model": lambda: "a net"}, {}, "model factory .* returned a str"),
        ({"optimizer": lambda parameters: None}, {}, "optimizer .* returned a NoneType"),
        ({"batch": lambda size: torch.ones(4, 4)}, {}, "for 8 and 4 samples it returned tensors of the same shapes"),
        ({}, {"activation_checkpointing": True}, "Linear offers no way to switch activation checkpointing on"),
    ],
)
def test_callables_that_break_their_contract_are_told(
    changes: dict[str, Any], knobs: dict[str, Any], said: str
) -> None:
    with pytest.raises(WorkloadError, match=said):
        build(workload(**changes), **knobs)


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, batch: model(batch).mean().item(),
        lambda model, batch: model(batch),
        lambda model, batch: batch.mean(),
    ],
)
def test_a_loss_that_cannot_be_differentiated_is_told(loss: Any) -> None:
    with pytest.raises(WorkloadError, match="the workload's loss"):
        run_optimizer_step(build(workload(loss=loss)))


def rows(count: int) -> torch.Tensor:
    return torch.ones(count, 4)


@pytest.mark.parametrize(
    ("batch", "size", "said"),
    [
        (lambda size: rows(32)[:size], 96, r"too few samples: for 96 .* \(32, 4\); allow no more with --max-batch 32"),
        (lambda _: rows(4), 64, "ignores its argument: for 64 and 32 samples"),
        (lambda size: rows(32)[:size], 40, r"too few samples: for 40 it returned a tensor of shape \(32, 4\)"),
        (lambda size: (rows(4), rows(32)[:size]), 40, "too few samples"),
        (lambda size: rows(32)[:size], 32, None),
        (lambda size: rows(size // 8 * 8), 79, None),  # in groups of eight
        (lambda size: (rows(20), rows(size)), 40, None),  # the first are no samples
        (lambda size: rows(1000 - size), 40, None),
    ],
)
def test_batches_of_too_few_samples_are_refused(batch: Any, size: int, said: str | None) -> None:
    made = workload(batch=batch)
    if said is None:
        build(made, micro_batch_size=size)
    else:
        with pytest.raises(WorkloadError, match=said):
            build(made, micro_batch_size=size)


def test_marks_are_set_at_the_seams_of_every_micro_step() -> None:
    seen: list[str] = []
    marks = StepMarks(
        forward_starts=lambda: seen.append("forward"),
        forward_ends=lambda batch: seen.append(f"batch of {len(batch)}"),
        backward_ended=lambda: seen.append("backward"),
        evaluation_starts=lambda batch: seen.append(f"evaluation of {len(batch)}"),
    )
    state = build(
        workload(evaluate=lambda model, batch: model(batch), evaluation_batch=lambda size: torch.ones(3 * size, 4)),
        accumulation_steps=2,
    )
    run_optimizer_step(state, marks)
    run_evaluation(state, marks)
    assert seen == ["forward", "batch of 8", "backward"] * 2 + ["evaluation of 24"] * 2


def test_evaluation_is_of_the_training_batch_where_no_other_is_named() -> None:
    rows = []
    run_evaluation(build(workload(evaluate=lambda _, batch: rows.append(len(batch)))))
    assert rows == [8, 8]


@pytest.mark.parametrize("after_step", [True, False])
def test_evaluation_finds_gradients_unless_they_are_zeroed_after_the_step(after_step: bool) -> None:
    found = []
    state = build(
        workload(evaluate=lambda model, _: found.append(model.weight.grad is not None), zero_grad_after_step=after_step)
    )
    for _ in range(2):
        run_optimizer_step(state)
    run_evaluation(state)
    assert found == [not after_step] * 2


@pytest.mark.usefixtures("no_replica_is_left")
@pytest.mark.parametrize(
    ("policy", "places"),
    [(OffloadPolicy(), [CPU]), (CPUOffloadPolicy(pin_memory=False), [])],
    ids=["kept", "offloaded"],
)
def test_shards_that_fsdp_offloads_are_not_moved_to_the_device(policy: OffloadPolicy, places: list[object]) -> None:
    moves: list[object] = []

    class Tells(torch.nn.Linear):
        def to(self, place: object) -> Tells:
            moves.append(place)
            return self

    made = workload(
        model=lambda: Tells(4, 1, bias=False), shard=lambda model, _: fully_shard(model, offload_policy=policy)
    )
    build(made, world_size=2)
    assert moves == places


def test_an_engines_loss_scale_is_told_in_fp16_alone() -> None:
    engine = SimpleNamespace(optimizer=SimpleNamespace(loss_scale=4.0))
    scales = [replace(build(precision=each), engine=engine, scaler=None).loss_scale for each in ("fp16", "bf16")]
    assert scales == [4.0, None]
