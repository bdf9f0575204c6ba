"""What operators and their gradients take on a card, in memplan's traces beside PyTorch's own code for CUDA.

    python benchmarks/operator_events.py --card h100 traced.jsonl
    python benchmarks/cuda_stubs/run.py --card h100 benchmarks/operator_events.py --on-card allocated.jsonl
    python benchmarks/operator_events.py traced.jsonl allocated.jsonl         # prints where peaks differ

Needs a CUDA build of PyTorch, no card, and expecttest, which PyTorch's own tests need. Run are the samples of PyTorch's
operator tests (``op_db``), whose sizes are multiplied, in single precision and in bfloat16; of each the peak of the
call and that of its gradients are compared, in blocks of 512 bytes and without what cuBLAS keeps. The stub computes
nothing, so that operators differ whose sizes follow from values, and some end in errors there. Each operator is run in
a process of its own; a file that is there is gone on with.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import warnings
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from memplan.devices.cards import DeviceSpec, find_card
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import remember_values
from memplan.estimators.lowering.target_device import cuda_emulation_for, kernels_of, lower_to
from memplan.estimators.recorder.backward_thread import BackwardThread
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.results import Component, Phase
from memplan.units import round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Peaks = tuple[int, int]  # of the call and of its gradients, in bytes beyond what it is given
    Measure = Callable[[Callable[..., Any], Any], Peaks]

_LENGTHS = {"XS": 3, "S": 5, "M": 10, "L": 20}  # by which samples are made
_TYPES = (torch.float32, torch.bfloat16)
_MOST_SAMPLES = 40
_BLOCK_BYTES = 512
_KEPT_BYTES = 32 << 20  # by cuBLAS on Hopper and Blackwell, once it has multiplied
_TOLERATED = 8 * _BLOCK_BYTES
_SECONDS = 60  # of one operator


def samples_of(operator: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """Return some of an operator's samples, spread over all of them: operand, positional and named arguments."""
    torch.manual_seed(0)
    made = operator.sample_inputs("cpu", dtype, requires_grad=operator.supports_autograd)
    found = [(each.input, each.args, each.kwargs) for each in islice(made, _MOST_SAMPLES)]
    return found[:: max(len(found) // count, 1)][:count]


def run(call: Callable[..., Any], given: Any, between: Callable[[], None]) -> None:
    """Call an operator and compute its gradients."""
    operand, args, kwargs = given
    results = [each for each in tree_leaves(call(operand, *args, **kwargs)) if isinstance(each, torch.Tensor)]
    between()
    trained = [each for each in results if each.requires_grad]
    if trained:
        torch.autograd.backward(trained, [torch.ones_like(each) for each in trained])


def allocated_peaks(call: Callable[..., Any], given: Any) -> Peaks:
    """Return what PyTorch allocates on the card."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cuda().requires_grad_(tensor.requires_grad)

    on_card, marks = tree_map_only(torch.Tensor, moved, given), []
    torch.cuda.memory._record_memory_history("all", context=None)
    run(call, on_card, lambda: marks.append(len(_history())))
    events = _history()
    torch.cuda.memory._record_memory_history(None)
    return peaks_of(events, marks[0])


def _history() -> list[int]:
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[each["action"]] * each["size"] for each in events if each["action"] in signs]


def traced_peaks(call: Callable[..., Any], given: Any, card: DeviceSpec) -> Peaks:
    """Return what a trace for the card records."""
    torch.set_num_threads(1)  # makes the fork's pool anew
    recording, fakes, marks = Recording(micro_batch_size=1), TraceFakeMode(), []
    ledger = StorageLedger(recording)
    emulation = cuda_emulation_for(card, card_is_seen=True)
    if emulation is None:
        raise SystemExit(f"{card.name} is no card")
    with emulation:
        recorder = OperatorRecorder(
            recording,
            ledger,
            ModulePaths(nn.Identity()),
            kernels=kernels_of(card),
            host_copies=emulation.host_copies,
            fakes=fakes,
        )
        reals = [each.detach() for each in tree_leaves(given) if isinstance(each, torch.Tensor)]

        def faked(tensor: torch.Tensor) -> torch.Tensor:
            return fakes.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)

        on_fakes = tree_map_only(torch.Tensor, faked, given)
        tensors = [each for each in tree_leaves(on_fakes) if isinstance(each, torch.Tensor)]
        remember_values(tensors, reals)
        ledger.track_all(tensors, Component.INPUTS, module="", operator="given")
        first = len(recording.event_blocks)

        def enter_backward() -> None:
            marks.append(len(recording.event_blocks) - first)
            recording.phase = Phase.BACKWARD

        with fakes, recorder, BackwardThread().numbering():
            run(call, on_fakes, enter_backward)
            recorder.resolve_pending_reuse()
    ledger.close()
    sizes = [recording.block_bytes[block] for block in recording.event_blocks]
    events = [size if made else -size for size, made in zip(sizes, recording.event_allocates, strict=True)]
    return peaks_of(events[first:], marks[0])


def peaks_of(events: list[int], calls: int) -> Peaks:
    """Return the peaks of the first so many events and of the rest."""
    live, peaks = 0, [0, 0]
    for place, size in enumerate(events):
        if abs(size) != _KEPT_BYTES:
            live += (1 if size > 0 else -1) * round_up(abs(size), _BLOCK_BYTES)
        peaks[place >= calls] = max(peaks[place >= calls], live)
    return peaks[0], peaks[1]


def measured(operator: Any, measure: Measure, count: int) -> Iterator[tuple[str, Peaks | str]]:
    """Yield what each sample of an operator takes, or the error in which it ends."""
    for dtype in _TYPES:
        for number, given in enumerate(samples_of(operator, dtype, count) if dtype in operator.dtypes else ()):
            found: Peaks | str
            try:
                found = measure(operator.get_op(), given)
            except Exception as error:  # noqa: BLE001 - of the operator, on this device
                found = f"{type(error).__name__}: {error}"[:200]
            yield f"{dtype} {number}", found


def in_a_fork(work: Callable[[], Iterator[tuple[str, Peaks | str]]]) -> dict[str, Peaks | str]:
    """Return what a process of its own found until it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_SECONDS)
        with suppress(BaseException), os.fdopen(writing, "w") as stream:
            for found in work():
                stream.write(json.dumps(found) + "\n")
                stream.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        lines = [json.loads(line) for line in stream if line.endswith("\n")]
    os.waitpid(child, 0)
    return dict(lines)


def write(path: Path, measure: Measure, *, scale: int, count: int) -> None:
    """Write what the samples of every operator take that is not in the file yet, a line for each operator."""
    from torch.testing._internal.common_methods_invocations import op_db  # makes CUDA's context

    for module in [each for name, each in sys.modules.items() if name.startswith("torch.testing._internal")]:
        for name, length in _LENGTHS.items():
            if getattr(module, name, None) == length:
                setattr(module, name, scale * length)
    torch.cuda._is_in_bad_fork = torch._C._cuda_isInBadFork = lambda: False  # the stub may be forked
    gc.freeze()
    done = set(read(path)) if path.exists() else set()
    with path.open("a", encoding="utf-8") as stream:
        for operator in op_db:
            name = f"{operator.name}.{operator.variant_test_name}".rstrip(".")
            if name not in done:
                found = in_a_fork(lambda operator=operator: measured(operator, measure, count))  # type: ignore[misc]
                stream.write(json.dumps([name, found]) + "\n")
                stream.flush()


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return what was written, by operator and sample."""
    return dict(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def compare(traced: dict[str, dict[str, Any]], allocated: dict[str, dict[str, Any]]) -> None:
    """Print where peaks differ by more than a few blocks, and how many do not."""
    alike = compared = 0
    for name in traced.keys() & allocated.keys():
        both = {each: (traced[name][each], allocated[name][each]) for each in traced[name].keys() & allocated[name]}
        both = {each: found for each, found in both.items() if not any(isinstance(side, str) for side in found)}
        differing = {each: found for each, found in both.items() if not _are_alike(*found)}
        compared += len(both)
        alike += len(both) - len(differing)
        if differing:
            sample, (by_trace, by_card) = max(differing.items(), key=lambda each: max(each[1][1]))
            print(f"{name}: {len(differing)} of {len(both)}, such as {sample}: traced {by_trace}, on CUDA {by_card}")
    print(f"{alike} of {compared} samples agree, PyTorch {torch.__version__}")


def _are_alike(traced: list[int], allocated: list[int]) -> bool:
    return all(abs(one - other) <= _TOLERATED for one, other in zip(traced, allocated, strict=True))


def main() -> None:
    """Write peaks, or compare what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--on-card", action="store_true", help="on CUDA, which a stub stands for")
    parser.add_argument("--card", default="h100", help="for which a trace is made")
    parser.add_argument("--scale", type=int, default=4, help="by which lengths of samples are multiplied")
    parser.add_argument("--samples", type=int, default=8, help="of each operator and type, at most")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if len(options.files) == 2:
        compare(*map(read, options.files))
        return
    card = find_card(options.card)
    if not options.on_card:
        lower_to(card)
    measure = allocated_peaks if options.on_card else lambda call, given: traced_peaks(call, given, card)
    write(options.files[0], measure, scale=options.scale, count=options.samples)


if __name__ == "__main__":
    main()
