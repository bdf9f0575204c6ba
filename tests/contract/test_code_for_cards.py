"""User code that only a card runs as it is meant, traced where there is none."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from memplan.devices.cards import card_of_size, find_card
from memplan.estimators import StepTrace, estimate, trace_step
from memplan.recipe import Precision, Recipe
from memplan.results import Component
from memplan.units import MIB
from memplan.workload import Workload
from tests.contract.tracing import TEMPLATE, traced
from tests.making import CPU, reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.devices.cards import DeviceSpec

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TOKENS, WIDTH = 512, 64  # scores of one sample in single precision: 1 MiB


def trace_of(
    model: Callable[[], nn.Module],
    batch: Callable[[int], torch.Tensor] = lambda size: torch.zeros(size, WIDTH),
    *,
    device: DeviceSpec | None = None,
    precision: Precision = Precision.FP32,
) -> StepTrace:
    workload = Workload(
        model=model,
        batch=batch,
        loss=lambda model, batch: model(batch).sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    recipe = Recipe(micro_batch_size=2, precision=precision)
    return traced(workload, device or find_card("rtx-3090"), recipe)


class Resizing(nn.Linear):
    """Resizes images to twice their size, and pads them."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        images = super().forward(batch).view(-1, 1, 8, 8)
        return functional.pad(functional.interpolate(images, scale_factor=2, mode="bilinear"), (1,) * 4, "replicate")


def operators_of(trace: StepTrace) -> set[str]:
    return set(trace.timelines[0].operator_names)


def repeating() -> nn.Module:
    torch.use_deterministic_algorithms(True)
    return Resizing(WIDTH, WIDTH)


def test_where_results_are_to_repeat_code_for_cards_is_followed() -> None:
    """PyTorch's functions choose it by ``is_cuda`` and ``is_cpu``; its gradients are writes by indices."""
    usual = operators_of(trace_of(lambda: Resizing(WIDTH, WIDTH)))
    on_host = operators_of(trace_of(repeating, device=CPU))
    on_card = operators_of(trace_of(repeating))
    resized_or_padded = {"aten.upsample_bilinear2d_backward", "aten.replication_pad2d_backward"}
    assert resized_or_padded <= usual & on_host
    assert not resized_or_padded & on_card
    assert "aten._unsafe_index" in on_card


class Classifying(nn.Linear):
    """A loss for each pixel of images."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        images = super().forward(batch).view(-1, 4, 4, 4)
        return functional.cross_entropy(images, torch.zeros(len(images), 4, 4, dtype=torch.int64))


def strictly_repeating() -> nn.Module:
    torch.use_deterministic_algorithms(True)
    return Classifying(WIDTH, WIDTH)


def repeating_where_possible() -> nn.Module:
    torch.use_deterministic_algorithms(True, warn_only=True)
    return Classifying(WIDTH, WIDTH)


@pytest.mark.parametrize(
    ("model", "device", "is_told"),
    [
        (strictly_repeating, None, True),
        (strictly_repeating, CPU, False),
        (repeating_where_possible, None, False),
        (lambda: Classifying(WIDTH, WIDTH), None, False),
    ],
    ids=["strict", "on the CPU", "warned of", "usual"],
)
def test_operators_that_a_card_refuses_under_deterministic_algorithms_are_told(
    model: Callable[[], nn.Module], device: DeviceSpec | None, is_told: bool
) -> None:
    said = "the card refuses nll_loss2d_forward, which cannot repeat results"
    assert any(note.startswith(said) for note in trace_of(model, device=device).notes) is is_told


@pytest.mark.parametrize("device", [find_card("rtx-3090"), CPU], ids=["card", "cpu"])
def test_a_card_that_code_chooses_by_default_is_the_one_that_is_traced_for(device: DeviceSpec) -> None:
    source = reference("trial_workloads:chooses_a_card", Path(__file__).parent)
    trace = trace_step(source, Recipe(micro_batch_size=2), device, template=TEMPLATE)
    assert MIB in trace.timelines[0].block_bytes(2)  # its weights


class Asking(nn.Linear):
    """Branches on what it sees of the card."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        assert (properties.name, properties.multi_processor_count) == (torch.cuda.get_device_name("cuda"), 40)
        assert torch.cuda.get_device_capability(0) == (properties.major, properties.minor) == (7, 5)
        assert torch.cuda.is_bf16_supported()  # in software
        assert not torch.cuda.is_bf16_supported(including_emulation=False)
        assert not torch.cuda.is_tf32_supported()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        assert free_bytes < total_bytes == properties.total_memory
        torch.cuda.synchronize()
        torch.accelerator.synchronize()
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated() == 0
        assert isinstance(torch.cuda.memory_summary(), str)
        return super().forward(batch)


def test_questions_for_the_card_are_answered_as_it_would() -> None:
    trace = trace_of(lambda: Asking(WIDTH, WIDTH), device=find_card("t4"))
    assert trace.method == "fake-tensor trace"
    (note,) = trace.notes
    assert "test_code_for_cards.py" in note
    assert note.endswith("sees t4")


class HalfWhereNative(nn.Linear):
    """Runs in bfloat16 on cards that have it."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        native = torch.cuda.get_device_capability() >= (8, 0)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_available() and native):
            return super().forward(batch)


@pytest.mark.parametrize(("device", "casts"), [("rtx-3090", True), ("t4", False)])
def test_a_model_that_goes_by_the_card_is_traced_as_it_runs_there(device: str, casts: bool) -> None:
    trace = trace_of(lambda: HalfWhereNative(WIDTH, WIDTH), device=find_card(device))
    assert ("aten._to_copy" in trace.timelines[0].operator_names) is casts


class AskingForAutocast(nn.Linear):
    """Converts by itself where CUDA's autocast is on."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else torch.float32
        with torch.autocast("cuda", enabled=False):
            assert not torch.is_autocast_enabled("cuda")
            return nn.functional.linear(batch.to(dtype), self.weight.to(dtype))


@pytest.mark.parametrize(("precision", "casts"), [(Precision.BF16, True), (Precision.FP32, False)])
def test_a_model_that_asks_for_autocast_is_told_of_it(precision: Precision, casts: bool) -> None:
    trace = trace_of(lambda: AskingForAutocast(WIDTH, WIDTH), precision=precision)
    assert ("aten._to_copy" in trace.timelines[0].operator_names) is casts


class Masked(nn.Linear):
    """Attends under a mask by plain matrix products."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        given = super().forward(batch)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(given, given, given, torch.zeros(TOKENS, TOKENS))


def test_plain_attention_adds_its_mask_into_the_scores() -> None:
    trace = trace_of(lambda: Masked(WIDTH, WIDTH), lambda size: torch.zeros(size, TOKENS, WIDTH))
    (timeline,) = trace.timelines
    added = timeline.operators == timeline.operator_names.index("aten.add")
    assert not (timeline.block_bytes(1)[added] == MIB).any()


def test_a_card_of_a_size_alone_answers_with_the_assumed_capability() -> None:
    trace = trace_of(lambda: HalfWhereNative(WIDTH, WIDTH), device=card_of_size("24GiB"))
    assert "aten._to_copy" in trace.timelines[0].operator_names


class Tabulated(nn.Linear):
    """Holds a table in a plain attribute, which a move of the model leaves on the host."""

    def __init__(self, place: str = "cpu", *, moves: bool = True) -> None:
        super().__init__(WIDTH, WIDTH)
        self.table = torch.zeros(TOKENS, WIDTH, device=place)
        self._moves = moves

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        table = self.table.detach()
        if self._moves:
            table = table.to(batch.device)
        return super().forward(batch) + (table @ self.weight[0]).sum()


@pytest.mark.parametrize(
    ("model", "held_by"),
    [(Tabulated, ["aten._to_copy"] * 3), (lambda: Tabulated(moves=False), ["attribute"])],
    ids=["moved in each step", "moved unseen"],
)
def test_a_table_in_a_plain_attribute_is_on_the_card_where_code_moves_it(
    model: Callable[[], nn.Module], held_by: list[str]
) -> None:
    (timeline,) = trace_of(model).timelines
    of_tables = timeline.operators[timeline.block_bytes(1) == TOKENS * WIDTH * 4]
    operators = [timeline.operator_names[each] for each in of_tables]
    assert operators == held_by


def test_a_table_that_is_made_on_the_card_is_there() -> None:
    (timeline,) = trace_of(lambda: Tabulated("cuda", moves=False)).timelines
    of_tables = timeline.operators[timeline.block_bytes(1) == TOKENS * WIDTH * 4]
    assert [timeline.operator_names[each] for each in of_tables] == ["attribute"]


class NamingCuda(nn.Linear):
    """Makes tensors on the card by name, wherever PyTorch calls it from."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        shift = torch.ones(WIDTH, device=device) + torch.ones(WIDTH, device="cuda:0")
        return super().forward(batch.cuda()) + shift


class Checkpointed(nn.Module):
    """Runs its layer anew in the backward pass."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.layer, self.use_reentrant = NamingCuda(WIDTH, WIDTH), use_reentrant

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, batch.requires_grad_(), use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_cuda_is_understood_where_checkpointing_runs_a_layer_again(use_reentrant: bool) -> None:
    trace = trace_of(lambda: Checkpointed(use_reentrant=use_reentrant))
    assert trace.method == "fake-tensor trace"


class CardIdioms(nn.Linear):
    """Does what scripts for a card do beside the arithmetic."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        assert batch.is_cuda
        assert batch.device == self.weight.device == torch.device("cuda", 0)
        assert not batch.cpu().is_cuda
        assert batch.cpu().device == torch.device("cpu")
        beside, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event()
        state = torch.cuda.get_rng_state(device=batch.get_device())
        start.record()
        same = torch.cuda.current_stream()
        with torch.cuda.device(batch.device), torch.cuda.stream(same), torch.cuda.nvtx.range("layer"):
            result = super().forward(batch) + torch.cuda.FloatTensor(1).fill_(1)
        noise = torch.randn(1, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
        result = result + noise + torch.ones(1, device=batch.get_device()) + torch.ones(1, device="cpu").to(0)
        batch.record_stream(beside)
        torch.cuda.current_stream().wait_stream(beside)
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) > 0
        torch.cuda.set_rng_state(state)
        return result


def test_streams_events_and_random_states_of_a_card_are_stood_in_for() -> None:
    trace = trace_of(lambda: CardIdioms(WIDTH, WIDTH))
    assert (trace.method, trace.notes) == ("fake-tensor trace", ())


class OnSideStream(nn.Linear):
    """Runs on a stream of its own."""

    stream = None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.stream = self.stream or torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            return super().forward(batch)


def test_what_runs_on_a_stream_of_its_own_is_cached_for_it_in_both_passes() -> None:
    trace = trace_of(lambda: OnSideStream(WIDTH, WIDTH))
    (timeline,), side_streams = trace.timelines, trace.timelines[0].side_streams
    operators = {timeline.operator_names[timeline.operators[block]] for block in side_streams}
    assert set(side_streams.values()) == {1}
    assert {"aten.addmm", "aten.mm", "cuBLAS workspace"} <= operators  # the gradient of the weight is a product, too
    assert "aten.zeros_like" not in operators  # optimizer state
    assert trace.notes == ()


class ReturningCache(nn.Linear):
    """Returns cached memory between two large blocks, each time or at every third."""

    def __init__(self, interval: int) -> None:
        super().__init__(WIDTH, WIDTH)
        self.interval, self.calls = interval, 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        batch.repeat(TOKENS, 1)
        if self.calls % self.interval == 0:
            torch.cuda.empty_cache()
        return super().forward(batch)


@pytest.mark.parametrize(("interval", "returns"), [(1, 3), (3, 0)])
def test_cached_memory_is_returned_where_each_step_returns_it(interval: int, returns: int) -> None:
    trace = trace_of(lambda: ReturningCache(interval))
    (timeline,) = trace.timelines
    assert len(timeline.cache_returns) == returns  # two steps are traced, and one is added
    before = timeline.event_blocks[timeline.cache_returns - 1]
    repeated = timeline.operators[before] == timeline.operator_names.index("aten.repeat")
    assert repeated.all()


class CastInItsOwnFunction(torch.autograd.Function):
    """A function that autocast runs in single precision."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.dtype is torch.float32
        return tensor.exp()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        return slope


class EvaluatingFirst(nn.Linear):
    """Runs without gradients before it runs with them, in one autocast context."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            super().forward(batch)
        return CastInItsOwnFunction.apply(super().forward(batch))


def _gradients_reach_a_cast_made_without_them() -> bool:
    layer, batch = nn.Linear(1, 1), torch.ones(1, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            layer(batch)
        return layer(batch).requires_grad


@pytest.mark.skipif(not _gradients_reach_a_cast_made_without_them(), reason="this PyTorch cuts such gradients off")
def test_under_autocast_functions_cast_their_inputs_and_weights_get_gradients_of_the_cast_without_them() -> None:
    trace = trace_of(lambda: EvaluatingFirst(WIDTH, WIDTH), precision=Precision.BF16)
    assert trace.method == "fake-tensor trace"
    (timeline,) = trace.timelines
    assert (timeline.components == Component.GRADIENTS).any()


class HalfOnCards(nn.Linear):
    """Runs in bfloat16 where its input lies on a card."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        kind = batch.device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            return super().forward(batch)


def test_a_tensor_says_that_it_is_on_the_card() -> None:
    assert "aten._to_copy" in trace_of(lambda: HalfOnCards(WIDTH, WIDTH)).timelines[0].operator_names


class OnlyWhereCpu(nn.Linear):
    """Cannot go on where it sees a card that is not there."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if batch.is_cuda:
            torch.cuda.CUDAGraph().replay()
        return super().forward(batch)


def test_where_a_card_that_is_not_there_stops_the_step_tensors_say_that_they_are_on_the_cpu() -> None:
    trace = trace_of(lambda: OnlyWhereCpu(WIDTH, WIDTH))
    assert trace.method == "fake-tensor trace"
    (note,) = trace.notes
    assert note.startswith("tensors report the CPU as their device here")


def test_a_package_that_cannot_be_imported_where_it_sees_a_card_is_imported_anew(tmp_path: Path) -> None:
    package = tmp_path / "quantizing"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torch\nfrom . import layers\nif torch.cuda.is_available():\n    raise OSError('no library')\n"
    )
    (package / "layers.py").write_text("from torch.nn import Linear\n")
    folder = str(tmp_path)

    def model() -> nn.Module:
        sys.path.insert(0, folder)
        quantizing = importlib.import_module("quantizing")
        return quantizing.layers.Linear(WIDTH, WIDTH)  # type: ignore[no-any-return]  # of a module that mypy does not see

    trace = trace_of(model)
    assert trace.method == "fake-tensor trace"
    assert any("torch.cuda.is_available() is called and false here" in note for note in trace.notes)


class Sines(nn.Linear):
    """Eight sines on end, of which each keeps its input: a MiB for each sample."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        values = super().forward(batch)
        for _ in range(8):
            values = torch.sin(values)
        return values


class OffloadedSines(Sines):
    """Keeps what backward needs on the host."""

    def __init__(self, *, pin_memory: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.pin_memory = pin_memory

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=self.pin_memory):
            return super().forward(batch)


class LoggingSines(Sines):
    """Keeps copies of what it computed, for a metric."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        self.logged = [(result.detach().to("cpu") + 1).pin_memory() for _ in range(8)]
        self.back_on_the_card = self.logged[0].to(result.device)
        return result


def allocated_mib(model: Callable[[], nn.Module]) -> float:
    samples_of_a_mib = trace_of(model, lambda size: torch.zeros(size, 4 * 1024, WIDTH))
    card = find_card("rtx-3090")
    small, large = (estimate(samples_of_a_mib, micro_batch_size=size, device=card) for size in (100, 200))
    return (large.peak_allocated_bytes - small.peak_allocated_bytes) / (100 * MIB)


def test_activations_that_are_kept_on_the_host_take_nothing_on_the_card_until_they_are_needed() -> None:
    batch, kept_inputs, cosine, gradient = 1, 8, 1, 1
    assert allocated_mib(lambda: Sines(WIDTH, WIDTH)) == batch + kept_inputs + cosine + gradient
    for pin_memory in (False, True):
        offloaded = allocated_mib(lambda pin_memory=pin_memory: OffloadedSines(pin_memory=pin_memory))
        assert offloaded == batch + 1 + cosine + 2 * gradient


def test_copies_for_a_metric_take_nothing_on_the_card_and_one_that_is_moved_back_does() -> None:
    assert allocated_mib(lambda: LoggingSines(WIDTH, WIDTH)) == allocated_mib(lambda: Sines(WIDTH, WIDTH)) + 1


class SinesOfCopies(Sines):
    """Makes tensors on the card of one on the host."""

    def __init__(self, make: Callable[[torch.Tensor, torch.device], torch.Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.make = make

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        self.made = self.make(result.detach().cpu(), result.device)
        assert self.made.is_cuda
        return result


@pytest.mark.parametrize(
    "make",
    [
        lambda copy, device: torch.as_tensor(copy, device=device),
        lambda copy, device: torch.zeros_like(copy, device=device),
        lambda copy, _device: copy.new_zeros(copy.shape, device="cuda"),
        lambda copy, device: copy.type_as(torch.ones(1, device=device)),
    ],
)
def test_what_is_made_on_the_card_of_a_copy_on_the_host_lies_on_the_card(
    make: Callable[[torch.Tensor, torch.device], torch.Tensor],
) -> None:
    assert allocated_mib(lambda: SinesOfCopies(make)) == allocated_mib(lambda: Sines(WIDTH, WIDTH)) + 1


class MeanOfSines(Sines):
    """Returns its loss, on the card or as a copy on the host."""

    def __init__(self, *, on_host: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.on_host = on_host

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        mean = super().forward(batch).mean()
        return mean.cpu() if self.on_host else mean


def test_the_gradient_of_a_loss_that_is_moved_to_the_host_is_moved_back_to_the_card() -> None:
    on_card = allocated_mib(lambda: MeanOfSines(on_host=False))
    assert on_card == allocated_mib(lambda: Sines(WIDTH, WIDTH)) + 1  # a mean's gradient is divided, a sum's is a view
    assert allocated_mib(lambda: MeanOfSines(on_host=True)) == on_card


class KeepingABuffer(Sines):
    """Makes a tensor like its result, which it says need not be pinned."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        self.buffer = torch.empty_like(result, pin_memory=False)
        assert self.buffer.is_cuda
        return result


def test_a_tensor_like_one_on_the_card_lies_there_whatever_is_said_of_pinning() -> None:
    assert allocated_mib(lambda: KeepingABuffer(WIDTH, WIDTH)) == allocated_mib(lambda: Sines(WIDTH, WIDTH)) + 1


class KeepingOnTheHost(Sines):
    """Fills a tensor on the host, named as such, with its result."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        self.kept = torch.empty(result.shape, device="cpu")
        self.kept.copy_(result)
        assert not self.kept.is_cuda
        return result


def test_what_is_made_on_the_host_by_name_takes_nothing_on_the_card() -> None:
    assert allocated_mib(lambda: KeepingOnTheHost(WIDTH, WIDTH)) == allocated_mib(lambda: Sines(WIDTH, WIDTH))


class Offloading(torch.autograd.Function):
    """A sine that keeps its input on the host by hand."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values.to("cpu", non_blocking=True))
        return torch.sin(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (values,) = ctx.saved_tensors
        return values.to("cuda:0").cos_().mul_(gradient)


class OffloadedByHand(nn.Linear):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        values = super().forward(batch)
        for _ in range(8):
            values = Offloading.apply(values)
        return values


def test_a_function_of_the_users_moves_what_it_keeps_to_the_host_and_back() -> None:
    assert allocated_mib(lambda: OffloadedByHand(WIDTH, WIDTH)) == 1 + 2


class Packed(nn.Parameter):
    """A weight of which a move to a device makes one byte an element, and a scale for each row of it."""

    scales: torch.Tensor | None = None

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.scales is None:
            self.data, self.scales = self.data.to(torch.uint8), torch.ones(len(self))
        return self


class PackedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed = Packed(torch.zeros(1024, 1024), requires_grad=False)
        self.shift = nn.Parameter(torch.zeros(1024))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.packed.scales, torch.Tensor)
        return batch @ (self.packed * self.packed.scales[:, None]) + self.shift


def test_quantized_weights_are_counted_as_they_lie_on_the_card() -> None:
    timeline = trace_of(PackedLinear, lambda size: torch.zeros(size, 1024)).timelines[0]
    assert sum(timeline.size_terms[0][timeline.components == Component.PARAMETERS]) == 1024 * 1024 + 4096 + 4096


class OnlyRealGpu(nn.Linear):
    """Does with a GPU what cannot be done without."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_available():
            torch.cuda.CUDAGraph().replay()
        return super().forward(batch)


def test_code_that_needs_a_real_gpu_is_traced_without_what_it_does_there() -> None:
    (note,) = trace_of(lambda: OnlyRealGpu(WIDTH, WIDTH)).notes
    assert "torch.cuda.is_available() is called and false here" in note


class Flexible(nn.Module):
    """Attention of one head with a causal mask and a learnt slope of distances."""

    def __init__(self, *, compiled: bool) -> None:
        super().__init__()
        self.project, self.slope = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(1))
        self.attend = torch.compile(flex_attention) if compiled else flex_attention

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        heads = self.project(tokens).unsqueeze(1)
        mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, TOKENS, TOKENS, device=tokens.device)
        tilted = lambda score, _b, head, i, j: score + self.slope[head] * (i - j)  # noqa: E731
        return self.attend(heads, heads, heads, score_mod=tilted, block_mask=mask)


def flexible_trace(*, compiled: bool, precision: Precision = Precision.FP32) -> StepTrace:
    return trace_of(
        lambda: Flexible(compiled=compiled), lambda size: torch.zeros(size, TOKENS, WIDTH), precision=precision
    )


def blocks_of_scores(trace: StepTrace) -> int:
    """Count blocks of a MiB for each sample."""
    return int((trace.timelines[0].size_terms[1] == MIB).sum())


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_compiled_flex_attention_keeps_no_scores_and_what_it_captures_gets_gradients(precision: Precision) -> None:
    trace = flexible_trace(compiled=True, precision=precision)
    assert (trace.method, trace.notes, blocks_of_scores(trace)) == ("fake-tensor trace", (), 0)
    timeline = trace.timelines[0]
    assert (timeline.size_terms[1] == TOKENS * 4).any()  # a sum in single precision for each row
    slopes = timeline.size_terms[0][timeline.components == Component.GRADIENTS]
    assert 4 in slopes  # of the learnt slope


def test_uncompiled_flex_attention_keeps_the_whole_matrix_and_the_estimate_says_so() -> None:
    trace = flexible_trace(compiled=False)
    assert blocks_of_scores(trace) > 4
    (note,) = trace.notes
    assert note.startswith("FlexAttention is called uncompiled")
