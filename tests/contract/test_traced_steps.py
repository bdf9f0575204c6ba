"""What a card holds in each part of a step, from the user's code to the replay, where it can be worked out in the head.

Layers are 512 x 512 without bias, 1 MiB of weights, and batches of 512 rows are 1 MiB too. Figures are MiB, to a
hundredth: scalars are lost in the rounding, and cuBLAS's workspaces are left out.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.estimators import StepTrace, estimate
from memplan.estimators.step_trace import PHASES
from memplan.recipe import Recipe
from memplan.results import Component, Phase
from memplan.units import GIB, MIB
from memplan.workload import Workload
from tests.contract.tracing import FOUR_SAMPLES, traced

if TYPE_CHECKING:
    from collections.abc import Callable

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CARD = DeviceSpec(name="rtx-3090", kind=DeviceKind.CUDA, total_bytes=24 * GIB, compute_capability=(8, 6))
ROWS = 512


def trace(recipe: Recipe = FOUR_SAMPLES, **parts: Any) -> StepTrace:
    defaults = {"model": layer, "batch": rows, "loss": total, "optimizer": plain_descent}
    return traced(Workload(**{**defaults, **parts}), CARD, recipe)


def layer() -> nn.Module:
    return nn.Linear(512, 512, bias=False)


def two_layers() -> nn.Sequential:
    return nn.Sequential(layer(), layer())


def rows(count: int) -> torch.Tensor:
    return torch.zeros(count, 512)


def total(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).sum()


def plain_descent(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def levels(trace: StepTrace, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of every component after each event, and the phase of each event."""
    timeline = trace.timeline_at(size)
    assert timeline is not None
    signed = np.where(timeline.event_allocates, 1, -1) * timeline.block_bytes(size)[timeline.event_blocks]
    changes = np.zeros((len(signed), len(Component)), dtype=np.int64)
    changes[np.arange(len(signed)), timeline.components[timeline.event_blocks]] = signed
    changes[:, Component.WORKSPACES] = 0
    return changes.cumsum(axis=0), timeline.event_phases


def peak(trace: StepTrace, phase: Phase, size: int = ROWS) -> float:
    """Return the largest sum that is ever held in a phase."""
    held, phases = levels(trace, size)
    return round(held[phases == PHASES.index(phase)].sum(axis=1).max() / MIB, 2)


def at_peak(trace: StepTrace, phase: Phase, component: Component, size: int = ROWS) -> float:
    """Return what a component holds at the peak of a phase."""
    held, phases = levels(trace, size)
    held = held[phases == PHASES.index(phase)]
    return round(held[held.sum(axis=1).argmax(), component] / MIB, 2)


def after_forward(trace: StepTrace, component: Component, size: int = ROWS) -> float:
    """Return what a component holds when the last backward pass begins."""
    held, phases = levels(trace, size)
    last = np.flatnonzero(phases == PHASES.index(Phase.FORWARD))[-1]
    return round(held[last, component] / MIB, 2)


def largest(trace: StepTrace, component: Component) -> float:
    """Return the most that a component ever holds."""
    return round(levels(trace, ROWS)[0][:, component].max() / MIB, 2)


def attention() -> nn.Module:
    return nn.MultiheadAttention(512, 8, bias=False)


def test_a_card_gets_the_weights_of_a_module_after_those_of_its_children() -> None:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch, batch, batch)[0].sum()

    (timeline,) = trace(model=attention, loss=loss).timelines
    names = [timeline.operator_names[each] for each in timeline.operators[timeline.event_blocks[:2]]]
    assert names == ["weight", "in_proj_weight"]  # the first is the output projection's


def test_an_average_of_the_weights_is_a_second_copy() -> None:
    assert after_forward(trace(ema=True), Component.OPTIMIZER_STATE) == 1
    assert after_forward(trace(), Component.OPTIMIZER_STATE) == 0


def wide_teacher() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 4 * 512, bias=False), nn.Linear(4 * 512, 512, bias=False))  # 8 MiB


def distils(model: nn.Module, teacher: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        wanted = teacher(batch)
    return (model(batch) - wanted).square().sum()


class Distilled(nn.Module):
    """Holds a teacher where it is not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()
        self._teacher = [wide_teacher()]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return distils(self.layer, self._teacher[0], batch)


def taught_in_a_closure() -> StepTrace:
    teacher = wide_teacher()
    return trace(loss=lambda model, batch: distils(model, teacher, batch))


def taught_from_the_first_step_on() -> StepTrace:
    made: list[nn.Module] = []

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if not made:
            made.append(wide_teacher().to(batch.device))
        return distils(model, made[0], batch)

    return trace(loss=loss)


@pytest.mark.parametrize(
    "make",
    [taught_in_a_closure, taught_from_the_first_step_on, lambda: trace(model=Distilled)],
    ids=["closure of the loss", "made in the first step", "plain attribute"],
)
def test_the_weights_of_a_teacher_are_held_throughout(make: Callable[[], StepTrace]) -> None:
    taught = make()
    assert largest(taught, Component.PARAMETERS) == 1 + 8
    held, phases = levels(taught, ROWS)
    assert held[phases == PHASES.index(Phase.OPTIMIZER_STEP), Component.PARAMETERS].min() == 9 * MIB


def test_a_teacher_lies_on_the_card_before_the_first_step() -> None:
    (timeline,) = taught_in_a_closure().timelines
    sizes = timeline.block_bytes(ROWS)[timeline.event_blocks[: timeline.step_starts[0]]]
    assert sizes.tolist() == [MIB, 4 * MIB, 4 * MIB]
    assert np.diff(timeline.event_phases[: timeline.step_starts[0] + 1]).tolist() == [0, 0, 1]


def test_a_teachers_weights_are_cast_in_each_pass_that_autocast_runs() -> None:
    teacher = wide_teacher().requires_grad_(False)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return distils(model, teacher, batch)

    casts = trace(replace(FOUR_SAMPLES, precision="bf16"), loss=loss).timelines[0]
    of_teacher = casts.block_bytes(4) == 2 * MIB  # half of 4 MiB
    assert {casts.operator_names[each] for each in casts.operators[of_teacher]} == {"aten._to_copy"}


def test_an_average_that_the_loss_only_writes_is_held() -> None:
    averages: list[torch.Tensor] = []

    def model() -> nn.Module:
        made = layer()
        averages[:] = [each.detach().clone() for each in made.parameters()]
        return made

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        for average, each in zip(averages, model.parameters(), strict=True):
            average.mul_(0.9).add_(each.detach(), alpha=0.1)
        return total(model, batch)

    assert largest(trace(model=model, loss=loss), Component.BUFFERS) == 1


def test_of_a_data_set_on_the_host_only_what_is_moved_is_on_the_card() -> None:
    samples = torch.zeros(64 * 512, 512)  # 64 MiB

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        drawn = samples[torch.randint(len(samples), (len(batch),))].to(batch.device)
        return total(model, batch + drawn + samples[: len(batch)].to(batch.device))

    assert largest(trace(loss=loss), Component.BUFFERS) == 0


def squares(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().sum()


SMALL_CARD = replace(CARD, name="one multiprocessor", sm_count=1)


def test_the_gradient_of_a_bias_is_summed_from_partial_results_whose_size_follows_no_line() -> None:
    workload = Workload(model=lambda: nn.Linear(512, 512), batch=rows, loss=squares, optimizer=plain_descent)
    found = traced(workload, SMALL_CARD)
    (timeline,) = found.timelines
    summed = timeline.operators == timeline.operator_names.index("inside aten.sum")

    def partial_results(size: int) -> float:
        return timeline.block_bytes(size)[summed].max() / MIB

    # Four thread blocks of 32 x 4 outputs; the card holds twelve, so that three share the values, and from 3,073 rows
    # on as many as leave each thread at most 256 of them in its four rows.
    assert partial_results(64) == 0
    assert partial_results(2048) == 3 * 128 * 512 * 4 / MIB
    assert partial_results(8192) == 8 * 128 * 512 * 4 / MIB


def one_layer_with_bias() -> nn.Module:
    return nn.Linear(512, 256)


def test_autocast_casts_the_last_operand_first() -> None:
    found = trace(Recipe(micro_batch_size=4, precision="bf16"), model=one_layer_with_bias)
    (timeline,) = found.timelines
    casts = timeline.operators == timeline.operator_names.index("aten._to_copy")
    bias, weight, given = 256 * 2, 512 * 256 * 2, 8 * 512 * 2
    assert timeline.block_bytes(8)[casts][:3].tolist() == [bias, weight, given]


def frozen(index: int) -> nn.Module:
    model = two_layers()
    model[index].requires_grad_(False)
    return model


@pytest.mark.parametrize(("index", "kept"), [(0, 1), (1, 0)], ids=["first", "last"])
def test_a_frozen_layer_has_neither_gradient_nor_state_and_the_one_after_it_keeps_its_input(
    index: int, kept: float
) -> None:
    found = trace(model=lambda: frozen(index), optimizer=torch.optim.AdamW)
    assert largest(found, Component.PARAMETERS) == 2
    assert largest(found, Component.GRADIENTS) == 1
    assert largest(found, Component.OPTIMIZER_STATE) == 2
    assert after_forward(found, Component.ACTIVATIONS) == kept


def adapted() -> nn.Module:
    peft = pytest.importorskip("peft")
    named = nn.Sequential()
    named.add_module("a", layer())
    named.add_module("b", layer())
    return peft.get_peft_model(named, peft.LoraConfig(r=16, target_modules=["a", "b"], lora_dropout=0.0))


def test_adapters_of_rank_16_train_four_matrices_of_a_thirty_second_each() -> None:
    pytest.importorskip("peft")
    found = trace(
        model=adapted,
        optimizer=lambda parameters: torch.optim.AdamW(each for each in parameters if each.requires_grad),
    )
    assert largest(found, Component.PARAMETERS) == round(2 + 4 / 32, 2)
    assert largest(found, Component.GRADIENTS) == round(4 / 32, 2)
    assert largest(found, Component.OPTIMIZER_STATE) == 2 * 4 / 32
    assert after_forward(found, Component.ACTIVATIONS) == round(1 + 2 / 32, 2)  # a layer's output, two inner results


@pytest.mark.parametrize(
    ("optimizer", "temporaries"),
    [
        (torch.optim.Adam, 2),  # the square roots of both second moments
        (lambda parameters: torch.optim.Adam(parameters, weight_decay=0.1), 2),  # decayed gradients are gone by then
        (lambda parameters: torch.optim.Adam(parameters, foreach=False), 3),  # three of one layer at a time
        (lambda parameters: torch.optim.Adam(parameters, fused=True), 0),
        (lambda parameters: torch.optim.Adam(parameters, capturable=True), 2),  # refused off a card
        (lambda parameters: torch.optim.SGD(parameters, momentum=0.9), 0),
        (lambda parameters: torch.optim.SGD(parameters, momentum=0.9, weight_decay=0.1), 2),  # decayed gradients
    ],
    ids=["foreach", "foreach with decay", "single", "fused", "capturable", "momentum", "momentum with decay"],
)
def test_an_optimizers_step_takes_copies_by_its_implementation(
    optimizer: Callable[..., Any], temporaries: float
) -> None:
    found = trace(model=two_layers, optimizer=optimizer)
    assert at_peak(found, Phase.OPTIMIZER_STEP, Component.TEMPORARIES) == temporaries


def test_gradients_are_clipped_all_at_once_as_a_cards_are_and_take_only_their_norms() -> None:
    found = trace(model=two_layers, grad_clip_norm=1.0)
    assert "aten._foreach_norm" in found.timelines[0].operator_names
    assert at_peak(found, Phase.OPTIMIZER_STEP, Component.TEMPORARIES) == 0


class Blocks(nn.Module):
    """Four blocks of two layers, each followed by a GELU; every intermediate result of 2048 rows is 4 MiB."""

    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(nn.Sequential(layer(), nn.GELU(), layer(), nn.GELU()) for _ in range(4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_()
        for block in self.blocks:
            batch = block(batch) if self.reentrant is None else checkpoint(block, batch, use_reentrant=self.reentrant)
        return batch


@pytest.mark.parametrize(
    ("reentrant", "kept", "at_the_peak"),
    [
        (None, 16 * 4, 15 * 4 + 2 * 4),  # all but the last result, and the slopes of two
        (False, 4 * 4, 3 * 4 + 3 * 4 + 2 * 4),  # inputs of three blocks, three results of the third, two slopes
        (True, 4 * 4, 3 * 4 + 3 * 4 + 3 * 4),  # the block's result besides
    ],
    ids=["none", "non-reentrant", "reentrant"],
)
def test_checkpointed_blocks_keep_their_inputs_and_run_again(
    reentrant: bool | None, kept: float, at_the_peak: float
) -> None:
    found = trace(model=lambda: Blocks(reentrant=reentrant))
    assert after_forward(found, Component.ACTIVATIONS, size=2048) == kept
    weights_and_batch = 8 + 4
    gradients = at_peak(found, Phase.BACKWARD, Component.GRADIENTS, size=2048)
    assert peak(found, Phase.BACKWARD, size=2048) == weights_and_batch + gradients + at_the_peak


class Remembering(torch.optim.SGD):
    """Keeps the gradients of all steps, as L-BFGS does of some hundred."""

    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            self.state[each].setdefault("history", []).append(each.grad.clone())
        return super().step(closure)


def test_state_that_grows_from_step_to_step_is_told() -> None:
    (note,) = trace(optimizer=lambda parameters: Remembering(parameters, lr=0.1)).notes
    assert note.startswith("the optimizer's state still grew in the second step")
    assert trace(optimizer=torch.optim.AdamW).notes == ()


class OneLayerAStep(nn.Module):
    """Runs another of its layers in each step, as layers that are dropped at random run in some."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.steps = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        result: torch.Tensor = self.layers[self.steps % 2](batch)
        return result


def test_state_of_parameters_that_had_no_gradient_before_does_not_go_on_growing() -> None:
    assert trace(model=lambda: OneLayerAStep(2), optimizer=torch.optim.AdamW).notes == ()
    (note,) = trace(model=lambda: OneLayerAStep(4), optimizer=torch.optim.AdamW).notes
    assert "the optimizer's state is not counted: up to 4.00 MiB more" in note  # two moments of two layers


class Delegating(torch.optim.Optimizer):
    """Lets another optimizer step, and never makes a state of its own."""

    def __init__(self, parameters: Any) -> None:
        self.inner = torch.optim.AdamW(parameters)
        self.param_groups = self.inner.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.inner.step()


def test_the_state_of_an_optimizer_that_another_holds_is_optimizer_state() -> None:
    assert largest(trace(optimizer=Delegating), Component.OPTIMIZER_STATE) == 2


class Keeping(nn.Module):
    """Keeps the outputs of the last steps."""

    def __init__(self, kept_steps: int) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 512, bias=False)
        self.kept_steps = kept_steps
        self.outputs: list[torch.Tensor] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(batch)
        self.outputs = [*self.outputs, result.detach()][-self.kept_steps :]
        return result


@pytest.mark.parametrize(("kept_steps", "told"), [(1, False), (2, True), (1000, True)])
def test_outputs_that_steps_go_on_keeping_are_told(kept_steps: int, told: bool) -> None:
    notes = trace(model=lambda: Keeping(kept_steps)).notes
    assert any("kept more than it freed" in note and "what aten.mm made in layer" in note for note in notes) is told


class Searching(torch.optim.LBFGS):
    """Searches along the gradient of the last batch."""

    def step(self, closure: Any = None) -> Any:
        return super().step(lambda: self.param_groups[0]["params"][0].square().sum())


def test_what_a_full_history_of_l_bfgs_holds_is_told() -> None:
    notes = trace(optimizer=lambda parameters: Searching(parameters, history_size=32)).notes
    assert any(note.endswith("; a full history of 32 updates holds 64.00 MiB") for note in notes)


class Paged(torch.optim.AdamW):
    """Says of itself what bitsandbytes' paged optimizers do."""

    is_paged = True


def test_state_that_may_leave_the_card_is_told() -> None:
    (note,) = trace(optimizer=Paged).notes
    assert note.startswith("the optimizer's paged state is counted as on the card")


def test_a_loss_scaler_adds_its_scale_and_nothing_else() -> None:
    scaled, plain = (trace(Recipe(micro_batch_size=4, precision=precision)) for precision in ("fp16", "bf16"))
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP):
        assert peak(scaled, phase) == peak(plain, phase)
    assert after_forward(scaled, Component.ACTIVATIONS) == 0.5  # the batch in half precision


def test_accumulation_makes_each_further_gradient_beside_the_sum_so_far() -> None:
    found = trace(Recipe(micro_batch_size=4, accumulation_steps=2))
    assert at_peak(found, Phase.FORWARD, Component.GRADIENTS) == 1
    assert at_peak(found, Phase.BACKWARD, Component.GRADIENTS) == 1
    assert at_peak(found, Phase.BACKWARD, Component.TEMPORARIES) == 2  # the new one, and the slope written out


@pytest.mark.parametrize(("set_to_none", "gradients"), [(True, 0), (False, 1)])
def test_gradients_that_are_zeroed_in_place_stay(set_to_none: bool, gradients: float) -> None:
    found = trace(zero_grad_set_to_none=set_to_none)
    assert after_forward(found, Component.GRADIENTS) == gradients


def descent_in_the_backward_pass(parameters: Any) -> torch.optim.Optimizer:
    optimizers = {each: plain_descent([each]) for each in parameters}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    return plain_descent(list(optimizers))


class Trusting(torch.optim.SGD):
    """Scales steps by the norms of weights, as LARS and LAMB do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            norm = weight.norm()
            trust = 1 if norm == 0 else norm / weight.grad.norm()
            weight.sub_(0.1 * trust * weight.grad)


def test_an_optimizer_that_branches_on_norms_is_traced_as_for_numbers_that_are_not_zero() -> None:
    found = trace(optimizer=Trusting)
    assert found.method == "fake-tensor trace"
    assert "that the optimizer compares with others" in found.notes[-1]
    weights, gradients, batch, scaled = 1, 1, 1, 1
    assert peak(found, Phase.OPTIMIZER_STEP) == weights + gradients + batch + scaled


def test_hooks_that_step_the_optimizer_in_the_backward_pass_leave_no_gradient() -> None:
    found = trace(model=two_layers, optimizer=descent_in_the_backward_pass)
    assert peak(trace(model=two_layers), Phase.OPTIMIZER_STEP) == peak(found, Phase.OPTIMIZER_STEP) + 2


def adam_in_the_backward_pass(parameters: Any) -> torch.optim.Optimizer:
    weights = list(parameters)
    optimizers = {each: torch.optim.AdamW([each]) for each in weights}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in weights:
        each.register_post_accumulate_grad_hook(step)
    return plain_descent(weights)


def test_what_optimizers_keep_that_hooks_step_is_optimizer_state() -> None:
    found = trace(model=two_layers, optimizer=adam_in_the_backward_pass)
    assert after_forward(found, Component.OPTIMIZER_STATE) == 2 * 2
    assert after_forward(found, Component.GRADIENTS) == 0


def loss_of_a_momentum_encoder(model: nn.Sequential, batch: torch.Tensor) -> torch.Tensor:
    learnt, follows = (cast("nn.Linear", each) for each in model)
    follows.weight.data = follows.weight.data * 0.9 + learnt.weight.data * 0.1
    with torch.no_grad():
        target = follows(batch)
    return (learnt(batch) - target).square().mean()


def test_what_takes_the_place_of_a_weights_data_is_a_parameter() -> None:
    found = trace(model=two_layers, loss=loss_of_a_momentum_encoder)
    assert after_forward(found, Component.PARAMETERS) == 1 + 1
    assert after_forward(found, Component.ACTIVATIONS) == 1  # the difference, which is squared


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())


class Attended(nn.Module):
    """Attends to itself without gradients, as a teacher does."""

    def __init__(self, without_gradients: Any) -> None:
        super().__init__()
        self.layer = layer()
        self.without_gradients = without_gradients

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        heads = batch.view(len(batch), 1, 8, 64)
        with self.without_gradients():
            attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return self.layer(batch) + attended.flatten(1)


def test_inference_mode_allocates_what_no_gradients_do() -> None:
    in_inference_mode, without_gradients = (
        trace(model=lambda mode=mode: Attended(mode)) for mode in (torch.inference_mode, torch.no_grad)
    )
    assert "aten._scaled_dot_product_efficient_attention" in in_inference_mode.timelines[0].operator_names
    assert peak(in_inference_mode, Phase.FORWARD) == peak(without_gradients, Phase.FORWARD)
    assert in_inference_mode.uncounted == ()


def images(count: int) -> torch.Tensor:
    return torch.zeros(count, 16, 64, 64)  # four are 1 MiB


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_memory_format_of_the_batch_is_that_of_all_that_follows(channels_last: bool) -> None:
    found = trace(model=convolution, batch=images, channels_last=channels_last)
    assert largest_input(found) == 1
    assert after_forward(found, Component.ACTIVATIONS, size=4) == 2  # of the convolution, and of the ReLU
    assert "aten.clone" not in found.timelines[0].operator_names
    timeline = found.timelines[0]
    arrivals = np.count_nonzero((timeline.components == Component.INPUTS) & (timeline.block_bytes(4) == MIB))
    assert arrivals == 3 * (2 if channels_last else 1)  # in three steps, laid out anew once it has arrived


def largest_input(trace: StepTrace) -> float:
    timeline = trace.timelines[0]
    return round(timeline.block_bytes(4)[timeline.components == Component.INPUTS].max() / MIB, 2)


class Recurrent(nn.Module):
    """Sixteen sequences of 64 steps and 256 numbers are 1 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(256, 256, bias=False, batch_first=True)

    def forward(self, sequences: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(sequences, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("length", [64, 32])
def test_packed_sequences_keep_what_their_lengths_ask_for(length: int) -> None:
    found = trace(
        model=Recurrent,
        batch=lambda count: (torch.zeros(count, 64, 256), torch.full((count,), length)),
        loss=lambda model, batch: model(*batch).sum(),
    )
    assert found.method == "fake-tensor trace"
    packed_input_output_and_reserve = (1 + 1 + 5) * length / 64
    first_states = kept_states = 2 / 64
    assert after_forward(found, Component.ACTIVATIONS, size=16) == round(
        packed_input_output_and_reserve + first_states + kept_states, 2
    )


def sequences(count: int, *, batch_first: bool) -> torch.Tensor:
    return torch.zeros(count, 64, 256) if batch_first else torch.zeros(64, count, 256)


@pytest.mark.parametrize("batch_first", [True, False])
def test_batch_first_sequences_are_copied_for_the_gradients_of_the_weights(batch_first: bool) -> None:
    found = trace(
        model=lambda: nn.LSTM(256, 256, bias=False, batch_first=batch_first),
        batch=lambda count: sequences(count, batch_first=batch_first),
        loss=lambda model, batch: model(batch)[0].sum(),
    )
    held = 2 + 1 + 1 + 5  # weights, batch, output and reserve
    gradients = 1 + 2  # of the batch, and of the weights
    states = 4 * 2 / 64  # first, kept, the first ones' gradients, and those of the last
    workspace = 6 + 2 + 1 / 2 + 10 / 64  # gates and outputs of each step, weights, squares and states
    copy = 1 if batch_first else 0
    assert peak(found, Phase.BACKWARD, size=16) == round(held + gradients + states + workspace + copy, 2)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = self.layer(batch)
        return result.relu() + result.sigmoid() + result.tanh()


def test_gradients_that_meet_are_added_into_the_first_of_them() -> None:
    found = trace(model=Branches)
    weights, batch, three_results, two_slopes = 1, 1, 3, 2
    assert peak(found, Phase.BACKWARD) == weights + batch + three_results + two_slopes - 1  # one result is gone by then


class OfLists(nn.Module):
    """Takes a list of samples one by one, and keeps 1 MiB of each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([self.layer(sample).relu().sum() for sample in batch]).sum()


def test_samples_in_a_list_are_traced_at_small_sizes_for_all() -> None:
    def listed(size: int) -> list[torch.Tensor]:
        return [torch.zeros(512, 512) for _ in range(size)]

    parts = {"model": OfLists, "batch": listed, "loss": lambda model, batch: model(batch)}
    found = trace(Recipe(micro_batch_size=16), **parts)
    assert found.traced_batch_sizes == (2, 3, 5, 6, 7)  # gradients of the first two samples begin the sum
    assert found.notes == ()
    for size, as_of in ((1, 2), (2, 2), (3, 3), (4, 5), (5, 5), (40, 40)):
        assert after_forward(found, Component.INPUTS, size) == as_of
        assert after_forward(found, Component.ACTIVATIONS, size) == as_of
        assert found.covers(size) is (size == as_of)
    assert largest(found, Component.GRADIENTS) == 1
    one = trace(Recipe(micro_batch_size=1), **parts)
    assert one.covers(1)
    assert after_forward(one, Component.ACTIVATIONS, 1) == 1


class OneByOne(nn.Module):
    """Takes samples one by one, as many as are in the batch and each longer than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [self.layer(sample.expand(1 + place, -1)).relu().sum() for place, sample in enumerate(batch)]
        )


def test_where_allocations_depend_on_the_samples_the_recipes_own_size_is_traced() -> None:
    found = trace(Recipe(micro_batch_size=16), model=OneByOne)
    assert found.traced_batch_sizes == (8, 16)
    assert any("interpolated" in note for note in found.notes)
    few = trace(Recipe(micro_batch_size=2), model=OneByOne)
    assert max(few.traced_batch_sizes) < 8


def test_convolutions_whose_workspaces_grow_unevenly_need_no_more_than_two_sizes() -> None:
    def convolutions() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 128, 3, stride=2)
        )

    found = trace(model=convolutions, batch=lambda count: torch.zeros(count, 3, 112, 112))
    (timeline,) = found.timelines
    sizes = [timeline.block_bytes(size)[timeline.workspaces.blocks] for size in (8, 32)]
    assert (sizes[1] != 4 * sizes[0]).any()
    assert found.traced_batch_sizes == (2, 3)
    assert not any("samples" in each for each in found.notes)


LENGTHS = (512, 256, 1024, 64, 128, 256, 64, 512)


def texts(count: int) -> torch.Tensor:
    """Rows padded to the longest among them."""
    return torch.zeros(count, max(LENGTHS[:count]), 512)


def test_a_padded_batch_is_traced_as_it_is_made_for_the_size_that_is_asked_about() -> None:
    found = trace(Recipe(micro_batch_size=8), batch=texts)
    assert found.traced_batch_sizes[-1] == 8
    predicted = estimate(found, micro_batch_size=8, device=CARD)
    assert predicted.breakdown.inputs == 8 * 1024 * 512 * 4
    assert any(note.startswith("samples differ, or what they take follows no curve") for note in predicted.notes)
    assert estimate(found, micro_batch_size=16, device=CARD).breakdown.inputs == 2 * predicted.breakdown.inputs


class KeepsSome(nn.Linear):
    """Goes on with the samples that a mask of the batch keeps."""

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(batch["rows"][batch["kept"]])


def kept_rows(count: int) -> dict[str, torch.Tensor]:
    kept = torch.arange(count) % (1 + count % 3) == 0
    return {"rows": torch.zeros(count, 512, 512), "kept": kept}


def test_what_the_values_of_a_batch_select_is_counted_at_the_size_that_is_asked_about() -> None:
    found = trace(Recipe(micro_batch_size=16), model=lambda: KeepsSome(512, 512, bias=False), batch=kept_rows)
    predicted = estimate(found, micro_batch_size=16, device=CARD)
    assert (found.method, found.traced_batch_sizes[-1]) == ("fake-tensor trace", 16)
    assert predicted.breakdown.activations == 8 * MIB + 4  # every second sample, kept for the weights; and the loss
