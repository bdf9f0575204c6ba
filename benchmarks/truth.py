"""Record what training steps really take on this machine's card, case by case, in resumable commands.

    python benchmarks/truth.py --out DIR [--known benchmarks/truth] [--minutes 8.5] [--only WORD] [--at-once N] [--list]

Runs what the records under ``--known`` and ``--out`` lack, each case in a process of its own, and appends one JSON line
per case to ``DIR/records-<time>.jsonl``; histories of the allocator go to ``DIR/histories-<time>.jsonl``. What failed
is told in ``DIR/failures-<time>.jsonl`` and tried again last. While one case has the card to itself, the models of the
next are made in memory. With ``--at-once`` several share the card, which suits compiled cases, whose time goes into
compiling: their records have no figure of the driver's and no time. Needs torch, timm, transformers, torchvision and
nvidia-ml-py; of memplan, nothing.

The step is a plain training loop: gradients set to None at its top, the batch moved to the card in every micro-step,
autocast, a gradient scaler for fp16, two warm-up steps and three timed ones. Peaks are read for every phase of every
step. *Process* is what the driver shows on the card after the last step beyond what it showed before the process came,
which is the reserved bytes plus the context, because nothing is given back in between.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # the parent forks, so it must not wake the driver
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the driver's own, by which it is asked

import pynvml
import torch
from cuda_stubs.values import STUBS_VARIABLE, answer_that_gradients_are_finite, answer_whether_masks_hide
from record_files import values_in
from truth_cases import MODELS, OPTIMIZERS, Case, matrix, trainable
from truth_models import shard

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
DEVICE = "cuda"
KINDS = ("allocated", "requested", "active", "reserved")
STEPS = 5
WARM_UP_STEPS = 2
CASE_LIMIT_S, COMPILED_CASE_LIMIT_S, OVERTIME_S = 150, 480, 60
SETTLING_LOOKS, SETTLING_S = 20, 0.05
MADE_AHEAD = 5
_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16, "bf16-true": torch.bfloat16}


@dataclass(slots=True)
class PhasePeaks:
    """Highest readings of the allocator in each phase of each step, in bytes."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def mark(self, step: int, phase: str) -> None:
        """Read the peaks since the last mark, and begin anew."""
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        peaks = {f"peak_{kind}_bytes": stats[f"{kind}_bytes.all.peak"] for kind in KINDS}
        self.rows.append(
            {"step": step, "phase": phase, **peaks, "allocated_bytes": stats["allocated_bytes.all.current"]}
        )
        torch.cuda.reset_peak_memory_stats()

    def highest(self, kind: str) -> int:
        """Return the highest reading of one kind over all phases."""
        return max(row[f"peak_{kind}_bytes"] for row in self.rows)


def used_on_card_bytes() -> int:
    """Return what the driver shows in use on the first visible card."""
    pynvml.nvmlInit()
    first = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
    find = pynvml.nvmlDeviceGetHandleByIndex if first.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID
    return int(pynvml.nvmlDeviceGetMemoryInfo(find(int(first) if first.isdecimal() else first)).used)


def settled_on_card_bytes() -> int:
    """Return what is in use once the driver has what the process before held back: two equal readings in a row."""
    read = used_on_card_bytes()
    for _ in range(SETTLING_LOOKS):
        time.sleep(SETTLING_S)
        earlier, read = read, used_on_card_bytes()
        if read == earlier:
            break
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """A case's model, batch and loss before the card is touched."""

    model: torch.nn.Module
    batch: Any
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]


def made_in_memory(case: Case) -> InMemory:
    """Make a case's model and batch."""
    torch.manual_seed(0)
    parts = trainable(case)
    model = parts.model().train()
    if STUBS_VARIABLE in os.environ:
        answer_whether_masks_hide(hides=parts.hides_tokens, device=DEVICE)
        answer_that_gradients_are_finite()
    if case.activation_checkpointing:
        switch = getattr(model, "gradient_checkpointing_enable", None) or model.set_grad_checkpointing
        switch()
    if case.precision == "bf16-true":
        model.to(torch.bfloat16)
    return InMemory(model=model, batch=parts.batch(case.micro_batch_size), loss=parts.loss)


def brought_to_card(case: Case, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Bring a model to the card, as its case describes it there, and return its optimizer."""
    if case.replicas > 1:
        join_replicas(case.replicas)
        shard(model, case.precision)
        torch.cuda.empty_cache()  # of whole layers, which a training that makes only its shards never has there
    model.to(DEVICE)
    if case.channels_last:
        model.to(memory_format=torch.channels_last)
    if case.compiled:
        model.compile(mode="reduce-overhead" if case.cuda_graphs else None)
    return OPTIMIZERS[case.optimizer](each for each in model.parameters() if each.requires_grad)


def join_replicas(count: int) -> None:
    """Make this process the first of so many replicas, whose collectives move nothing."""
    from torch.testing._internal.distributed import fake_pg  # registers the process group

    torch.distributed.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=count)


def on_card(case: Case, value: Any) -> Any:
    """Move a batch to the card, in the case's number and memory formats."""
    if isinstance(value, dict):
        return {name: on_card(case, each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(on_card(case, each) for each in value)
    half = torch.bfloat16 if case.precision == "bf16-true" and value.is_floating_point() else value.dtype
    moved = value.to(DEVICE, half)
    return moved.contiguous(memory_format=torch.channels_last) if case.channels_last and moved.dim() == 4 else moved


def train(case: Case, made: InMemory, peaks: PhasePeaks) -> dict[str, Any]:
    """Run the steps and return what was read outside of the peaks."""
    model = made.model
    optimizer = brought_to_card(case, model)
    peaks.mark(-1, "setup")
    scaler = torch.amp.GradScaler(DEVICE) if case.precision == "fp16" else None
    autocast = case.precision in ("fp16", "bf16") and case.replicas == 1
    seconds, losses = [], []
    for step in range(STEPS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(case.accumulation_steps):
            moved = None  # freed before the next is moved, as by `for batch in loader: batch = batch.to(device)`
            moved = on_card(case, made.batch)
            with torch.autocast(DEVICE, _HALF[case.precision]) if autocast else contextlib.nullcontext():
                loss = made.loss(model, moved)
                if case.accumulation_steps > 1:
                    loss = loss / case.accumulation_steps
            peaks.mark(step, "forward")
            (scaler.scale(loss) if scaler else loss).backward()
            peaks.mark(step, "backward")
        if case.grad_clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.grad_clip_norm)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        losses.append(float(loss.detach()) * case.accumulation_steps)
        peaks.mark(step, "optimizer step")
        seconds.append(time.perf_counter() - started)
    return {"step_times_s": seconds[WARM_UP_STEPS:], "losses": losses, **resident(model, optimizer)}


def resident(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes of what stays from step to step; gradients as they are after the last step."""
    size = lambda tensors: sum(each.numel() * each.element_size() for each in tensors)  # noqa: E731 - used thrice here
    state = [each for values in optimizer.state.values() for each in values.values() if torch.is_tensor(each)]
    return {
        "parameter_bytes": size(model.parameters()),
        "buffer_bytes": size(model.buffers()),
        "gradient_bytes": size(each.grad for each in model.parameters() if each.grad is not None),
        "optimizer_state_bytes": size(each for each in state if each.is_cuda),
    }


def measure(case: Case, made: InMemory, *, is_alone: bool) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run a case in this process, which nothing else uses, and return its record and its history."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:  # kernels are timed, as in a first run
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        return measure_without_caches(case, made, is_alone=is_alone)


def measure_without_caches(
    case: Case, made: InMemory, *, is_alone: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run a case where no compiled code is kept from earlier runs, and return its record and its history."""
    if case.allocator_settings:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = case.allocator_settings
    before_bytes = settled_on_card_bytes()
    torch.backends.cudnn.benchmark = case.cudnn_benchmark
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"  # in convolutions it is allowed by default
    torch.cuda.init()
    torch.zeros(1, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # so that a history begins with nothing
    context_bytes = used_on_card_bytes() - before_bytes
    if case.cap_bytes is not None:
        torch.cuda.set_per_process_memory_fraction(case.cap_bytes / torch.cuda.get_device_properties(0).total_memory)
    if case.keeps_history:
        torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    peaks, ending, read = PhasePeaks(), "fits", {}
    try:
        read = train(case, made, peaks)
    except torch.OutOfMemoryError as error:
        ending = f"out of memory: {error}"
    peaks.mark(STEPS, "end")  # of a step that ran out of memory, too
    stats = torch.cuda.memory_stats()
    driver = {
        "used_before_bytes": before_bytes,
        "context_at_start_bytes": context_bytes,
        "process_after_last_step_bytes": used_on_card_bytes() - before_bytes,
    }
    if not is_alone:
        driver, read = {}, {name: value for name, value in read.items() if name != "step_times_s"}
    record = {
        "key": case.key,
        "case": dataclasses.asdict(case),
        "ending": ending,
        **driver,
        "reserved_after_last_step_bytes": torch.cuda.memory_reserved(),
        "alloc_retries": stats.get("num_alloc_retries", 0),
        "phases": peaks.rows,
        **{f"peak_{kind}_bytes": peaks.highest(kind) for kind in KINDS},
        **read,
        "provenance": provenance(),
    }
    return record, history_of(torch.cuda.memory._snapshot()["device_traces"][0]) if case.keeps_history else None


def provenance() -> dict[str, Any]:
    """Say which card, driver, libraries and recorder a record comes from."""
    import timm
    import torchvision
    import transformers

    card = torch.cuda.get_device_properties(0)
    return {
        "card": card.name,
        "card_total_bytes": card.total_memory,
        "compute_capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        **{each.__name__: each.__version__ for each in (torch, timm, torchvision, transformers)},
        "recorder_sha256": recorder_sha256(),
        "recorded_on": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def recorder_sha256() -> str:
    """Digest of the files that decide what is recorded."""
    files = [HERE / name for name in ("truth.py", "truth_cases.py", "truth_models.py", "cuda_stubs/values.py")]
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
)


def history_of(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the allocator's events, and where each segment was put, in the order in which they were obtained."""
    return {
        "actions": ACTIONS,
        "events": condensed(trace),
        "segment_addresses": [each["addr"] for each in trace if each["action"] == "segment_alloc"],
    }


def condensed(trace: list[dict[str, Any]]) -> list[list[int]]:
    """Return the allocator's events as ``[action, block, bytes, stream]``, addresses and streams numbered as they come.

    Actions are indices into :data:`ACTIONS`; other events are left out.
    """
    blocks: dict[int, int] = {}
    streams: dict[int, int] = {}
    return [
        [
            ACTIONS.index(event["action"]),
            blocks.setdefault(event.get("addr", 0), len(blocks)),
            event["size"],
            streams.setdefault(event.get("stream", 0), len(streams)),
        ]
        for event in trace
        if event["action"] in ACTIONS
    ]


def keys_in(folder: Path, kind: str) -> set[str]:
    """Return the keys of all cases that the files of a kind in a folder name."""
    return {each["key"] for each in values_in(folder, kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where one command writes to."""

    records: Path
    histories: Path
    failures: Path


class CaseProcess:
    """A case in a process of its own: it makes its model at once, and waits for its turn on the card."""

    def __init__(self, case: Case, files: Files, *, is_alone: bool) -> None:
        self.case, self._files = case, files
        waits, self._gives = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._gives)
            self._run(waits, is_alone=is_alone)
        os.close(waits)
        self._ends_at = float("inf")

    def give_turn(self, limit_s: float) -> None:
        """Let the case have the card, for so long at most."""
        self._ends_at = time.monotonic() + limit_s
        os.write(self._gives, b"!")

    def ending(self) -> str | None:
        """Say how the case ended; None while it runs. One that hangs is ended."""
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if ended:
            os.close(self._gives)
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                append(self._files.failures, {"key": self.case.key, "ending": f"killed by signal {-code}"})
            return "recorded" if code == 0 else f"FAILED with status {code}"
        if time.monotonic() < self._ends_at:
            return None
        self.stop()
        append(self._files.failures, {"key": self.case.key, "ending": "still running at its limit"})
        return "ENDED at its limit"

    def stop(self) -> None:
        """End the process, whatever it does."""
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)
        os.close(self._gives)

    def _run(self, waits: int, *, is_alone: bool) -> NoReturn:
        code = 1
        try:
            made = made_in_memory(self.case)
            wait_for_turn(waits)
            record, history = measure(self.case, made, is_alone=is_alone)
            append(self._files.records, record)
            if history is not None:
                append(self._files.histories, {"key": self.case.key, **history})
            code = 0
        except BaseException as error:  # noqa: BLE001 - whatever happens, the child must not run the parent's loop
            traceback.print_exc()
            append(self._files.failures, {"key": self.case.key, "ending": f"{type(error).__name__}: {error}"})
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def wait_for_turn(waits: int) -> None:
    """Wait at a pipe until something is written into it.

    Raises:
        SystemExit: it was closed instead, as by a recorder that was killed.
    """
    if not os.read(waits, 1):
        raise SystemExit("the recorder ended before this case had its turn")


def run_in_turn(cases: list[Case], files: Files, ends_at: float, at_once: int) -> None:
    """Run cases until the time is up, so many of them on the card at once while the next are made in memory."""
    coming = collections.deque(cases)
    made: collections.deque[CaseProcess] = collections.deque()
    running: dict[CaseProcess, float] = {}
    while coming or made or running:
        while coming and len(made) < MADE_AHEAD:
            made.append(CaseProcess(coming.popleft(), files, is_alone=at_once == 1))
        is_time_left = time.monotonic() < ends_at
        if not is_time_left and not running:
            break
        if is_time_left and made and len(running) < at_once:
            turn = made.popleft()
            running[turn] = time.monotonic()
            limit_s = COMPILED_CASE_LIMIT_S if turn.case.compiled else CASE_LIMIT_S
            turn.give_turn(min(limit_s, ends_at - time.monotonic() + OVERTIME_S))
        for each, started in list(running.items()):
            if (ending := each.ending()) is not None:
                del running[each]
                print(f"{each.case.key:60s} {ending} {time.monotonic() - started:5.1f} s", flush=True)
        time.sleep(0.02)
    for each in made:
        each.stop()
    print(f"{len(coming) + len(made)} of {len(cases)} cases are left")


def append(path: Path, value: dict[str, Any]) -> None:
    """Append one line of JSON and see it on the disk."""
    with path.open("a") as file:
        file.write(json.dumps(value, separators=(",", ":")) + "\n")
        file.flush()
        os.fsync(file.fileno())


def missing(known: Path, out: Path, only: str | None) -> list[Case]:
    """Return the cases that no record is there of, those that failed before last."""
    done = keys_in(known, "records") | keys_in(out, "records")
    failed = keys_in(known, "failures") | keys_in(out, "failures")
    cases = [case for case in matrix() if case.key not in done and (only is None or only in case.key)]
    return sorted(cases, key=lambda case: case.key in failed)


def import_what_models_need(cases: list[Case]) -> None:
    """Import in the parent, once, what each child would import: make every model where it takes no memory."""
    for name in dict.fromkeys(case.model for case in cases):
        with contextlib.suppress(Exception), torch.device("meta"):  # a model that fails is told by its own case
            MODELS[name].make().model()


def main() -> None:
    """Record what is missing until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--known", type=Path, default=HERE / "truth")
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--only")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cases = missing(options.known, options.out, options.only)
    if options.list:
        print(*(case.key for case in cases), f"{len(cases)} of {len(matrix())} cases missing", sep="\n")
        return
    ends_at = time.monotonic() + 60 * options.minutes
    import_what_models_need(cases)
    if torch.cuda.is_initialized():
        raise SystemExit("one of the model libraries woke the card, and no fork of this process can use it any more")
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S")
    files = Files(**{name: options.out / f"{name}-{stamp}.jsonl" for name in ("records", "histories", "failures")})
    run_in_turn(cases, files, ends_at, options.at_once)


if __name__ == "__main__":
    main()
