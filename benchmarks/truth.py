"""Record what training steps really take on this machine's card, case by case, in resumable commands.

    python benchmarks/truth.py --out DIR [--known benchmarks/truth] [--minutes 8.5] [--only WORD] [--list]

Runs what the records under ``--known`` and ``--out`` lack, each case in a process of its own, and appends one JSON line
per case to ``DIR/records-<time>.jsonl``; histories of the allocator go to ``DIR/histories-<time>.jsonl``. What failed
is told in ``DIR/failures-<time>.jsonl`` and tried again last. Needs torch, timm, transformers, torchvision and
nvidia-ml-py; of memplan, nothing.

The step is a plain training loop: gradients set to None at its top, the batch moved to the card in every micro-step,
autocast, a gradient scaler for fp16, two warm-up steps and three timed ones. Peaks are read for every phase of every
step. *Process* is what the driver shows on the card after the last step beyond what it showed before the process came,
which is the reserved bytes plus the context, because nothing is given back in between.
"""

from __future__ import annotations

import argparse
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
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # the parent forks, so it must not wake the driver
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the driver's own, by which it is asked

import pynvml
import torch
from cuda_stubs.values import STUBS_VARIABLE, answer_that_gradients_are_finite, answer_whether_masks_hide
from truth_cases import MODELS, OPTIMIZERS, Case, matrix, trainable
from truth_models import shard

HERE = Path(__file__).parent
DEVICE = "cuda"
KINDS = ("allocated", "requested", "active", "reserved")
STEPS = 5
WARM_UP_STEPS = 2
CASE_LIMIT_S, COMPILED_CASE_LIMIT_S, OVERTIME_S = 150, 480, 60
SETTLING_LOOKS, SETTLING_S = 20, 0.05
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


def build(case: Case) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any, Any]:
    """Build model, optimizer, batch and loss of a case; the model is on the card afterwards."""
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
    if case.replicas > 1:
        join_replicas(case.replicas)
        shard(model, case.precision)
        torch.cuda.empty_cache()  # of whole layers, which a training that makes only its shards never has there
    model.to(DEVICE)
    if case.channels_last:
        model.to(memory_format=torch.channels_last)
    if case.compiled:
        model.compile()
    optimizer = OPTIMIZERS[case.optimizer](each for each in model.parameters() if each.requires_grad)
    return model, optimizer, parts.batch(case.micro_batch_size), parts.loss


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


def train(case: Case, peaks: PhasePeaks) -> dict[str, Any]:
    """Run the steps and return what was read outside of the peaks."""
    model, optimizer, batch, loss_of = build(case)
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
            moved = on_card(case, batch)
            with torch.autocast(DEVICE, _HALF[case.precision]) if autocast else contextlib.nullcontext():
                loss = loss_of(model, moved)
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


def measure(case: Case) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run a case in this process, which nothing else uses, and return its record and its history."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:  # kernels are timed, as in a first run
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        return measure_without_caches(case)


def measure_without_caches(case: Case) -> tuple[dict[str, Any], dict[str, Any] | None]:
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
        read = train(case, peaks)
    except torch.OutOfMemoryError as error:
        ending = f"out of memory: {error}"
    peaks.mark(STEPS, "end")  # of a step that ran out of memory, too
    stats = torch.cuda.memory_stats()
    record = {
        "key": case.key,
        "case": dataclasses.asdict(case),
        "ending": ending,
        "used_before_bytes": before_bytes,
        "context_at_start_bytes": context_bytes,
        "process_after_last_step_bytes": used_on_card_bytes() - before_bytes,
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


def keys_in(folder: Path, pattern: str) -> set[str]:
    """Return the keys of all cases that the files of a folder name; a last line that was cut off does not count."""
    whole = (path.read_text().rpartition("\n")[0] for path in folder.glob(pattern))
    return {json.loads(line)["key"] for text in whole for line in text.splitlines()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where one command writes to."""

    records: Path
    histories: Path
    failures: Path


def in_a_process_of_its_own(case: Case, files: Files, limit_s: float) -> str:
    """Fork, measure, append to the files, and say how it ended; a child that hangs is ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            record, history = measure(case)
            append(files.records, record)
            if history is not None:
                append(files.histories, {"key": case.key, **history})
            code = 0
        except BaseException as error:  # noqa: BLE001 - whatever happens, the child must not run the parent's loop
            traceback.print_exc()
            append(files.failures, {"key": case.key, "ending": f"{type(error).__name__}: {error}"})
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                append(files.failures, {"key": case.key, "ending": f"killed by signal {-code}"})
            return "recorded" if code == 0 else f"FAILED with status {code}"
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    append(files.failures, {"key": case.key, "ending": f"still running after {limit_s:.0f} s"})
    return f"ENDED after {limit_s:.0f} s"


def append(path: Path, value: dict[str, Any]) -> None:
    """Append one line of JSON and see it on the disk."""
    with path.open("a") as file:
        file.write(json.dumps(value, separators=(",", ":")) + "\n")
        file.flush()
        os.fsync(file.fileno())


def missing(known: Path, out: Path, only: str | None) -> list[Case]:
    """Return the cases that no record is there of, those that failed before last."""
    done = keys_in(known, "records*.jsonl") | keys_in(out, "records*.jsonl")
    failed = keys_in(known, "failures*.jsonl") | keys_in(out, "failures*.jsonl")
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
    for number, case in enumerate(cases, 1):
        if time.monotonic() > ends_at:
            print(f"time is up, {len(cases) - number + 1} cases are left")
            break
        started = time.monotonic()
        limit_s = COMPILED_CASE_LIMIT_S if case.compiled else CASE_LIMIT_S
        ending = in_a_process_of_its_own(case, files, min(limit_s, ends_at - started + OVERTIME_S))
        print(f"{number:3d}/{len(cases)} {case.key:60s} {ending} {time.monotonic() - started:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
