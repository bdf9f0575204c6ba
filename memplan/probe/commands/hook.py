"""What observes a training script from inside: each trial copies this file as ``sitecustomize.py`` before the script.

Python runs it at the start of every process of the command. It waits until the process imports torch's optimizers, if
it ever does, and then listens on torch's global optimizer-step hooks. What it sees goes line by line into a file that
memplan reads. Standard library and torch only, any Python that runs torch; whatever fails in here is told and never
reaches the script.

A *step* is a step of the optimizer that has stepped most often, so that a script with several optimizers counts its
iterations once. A step that a gradient scaler skips is none; it is counted as skipped within the step that follows.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import os
import signal
import sys
import time
import traceback
import weakref
from pathlib import Path
from typing import Any

SETTINGS_VARIABLE = "MEMPLAN_OBSERVE"
_OPTIMIZERS = "torch.optim.optimizer"
_STATE_IS_RESIDENT = 2  # optimizer steps after which state exists and gradients have been freed once
_LEAVE_LIMIT_S = 5.0
_RLIMIT_SLACK_BYTES = 128 << 20
_OWN_FOLDER = str(Path(__file__).resolve().parent)


class Observer:
    """What one process of the command does; a forked process starts anew.

    Args:
        events_path: file to append events to, one line of JSON each.
        steps: optimizer steps after which the process ends.
        leave_folder: where memplan leaves a file named after the process once it has read the driver's figures; None
            where there are none to read.
        resident_limit_bytes: budget of the process on the CPU; None for none.
        card_limit_bytes: what the allocator may take of each card; None for all.
    """

    def __init__(
        self,
        *,
        events_path: str,
        steps: int,
        leave_folder: str | None = None,
        resident_limit_bytes: int | None = None,
        card_limit_bytes: int | None = None,
    ) -> None:
        self._events_path = events_path
        self._steps = steps
        self._leave_folder = leave_folder
        self._resident_limit_bytes = resident_limit_bytes
        self._card_limit_bytes = card_limit_bytes
        self.start_anew()

    def start_anew(self) -> None:
        """Forget what was seen."""
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._scaler: Any = None
        self._is_built = False
        self._capped_cards: set[int] = set()
        self._step = self._calls = self._passes = self._skipped = self._depth = 0
        self._finite_losses: list[Any] = []
        self._last: float | None = None

    def tell(self, event: str, **facts: object) -> None:
        """Append one event; one write, so that lines of several processes do not mix."""
        line = json.dumps({"event": event, "pid": os.getpid(), **facts})
        descriptor = os.open(self._events_path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def watch_uncaught(self) -> None:
        """Tell of an uncaught exception before it is printed as always."""
        printing = sys.excepthook

        def tell_then_print(kind: Any, error: BaseException, trace: Any) -> None:
            with contextlib.suppress(Exception):
                self.tell("raised", chain=_chain(error), place=_place(error))
            printing(kind, error, trace)

        sys.excepthook = tell_then_print

    def watch_optimizers(self, module: Any) -> None:
        """Listen to torch's optimizers; called once their module is loaded."""
        self.tell("imported")
        module.register_optimizer_step_post_hook(self._guarded(self._stepped))
        making = module.Optimizer.__init__

        @functools.wraps(making)
        def make_then_look(optimizer: Any, *arguments: Any, **options: Any) -> None:
            making(optimizer, *arguments, **options)
            if not self._is_built:
                self._guarded(self._built)(optimizer)

        module.Optimizer.__init__ = make_then_look

    def _guarded(self, work: Any) -> Any:
        def guarded(*arguments: Any) -> None:
            try:
                work(*arguments)
            except Exception:  # noqa: BLE001 - the script must not notice
                with contextlib.suppress(Exception):
                    self.tell("failed", text=traceback.format_exc())

        return guarded

    def _built(self, optimizer: Any) -> None:
        """The first optimizer is made: torch is all there, and so is the model."""
        import torch  # noqa: PLC0415 - loaded by the script itself by now

        self._is_built = True
        if not hasattr(torch.autograd.backward, "_counted_by_memplan"):
            torch.autograd.backward = self._counting_passes(torch.autograd.backward)
            torch.amp.GradScaler.step = self._noticing_skips(torch.amp.GradScaler.step)  # type: ignore[method-assign]  # to see the steps that it leaves out
        self.tell("built", resident_bytes=_status_bytes("VmRSS"), parameters_bytes=_bytes_of(_parameters([optimizer])))
        if self._resident_limit_bytes is not None:
            _limit_data(self._resident_limit_bytes, torch.get_num_threads())
        self._cap_cards(_parameters([optimizer]))

    def _cap_cards(self, tensors: list[Any]) -> None:
        """Cap the allocator on the cards of some tensors; on a card that is not in use, torch would make a context."""
        if self._card_limit_bytes is not None:
            for index in _cards_of(tensors) - self._capped_cards:
                self._capped_cards.add(index)
                _cap_card(index, self._card_limit_bytes)

    def _counting_passes(self, backward: Any) -> Any:
        @functools.wraps(backward)
        def counted(*arguments: Any, **options: Any) -> Any:
            if not self._depth:  # reentrant checkpointing goes backward within a backward pass
                self._passes += 1
                self._guarded(self._look_at_losses)(arguments[0] if arguments else options["tensors"])
            self._depth += 1
            try:
                return backward(*arguments, **options)
            finally:
                self._depth -= 1

        counted._counted_by_memplan = True  # type: ignore[attr-defined]  # noqa: SLF001 - a mark of its own
        return counted

    def _look_at_losses(self, given: Any) -> None:
        """Keep whether the losses are finite, as one byte each: a loss itself may be a piece of something large."""
        import torch  # noqa: PLC0415 - as above

        losses = [each for each in (given if isinstance(given, (list, tuple)) else [given]) if each.numel() == 1]
        self._cap_cards(losses)  # of a model that was moved after its optimizer was made
        with torch.no_grad():
            self._finite_losses += [torch.isfinite(each) for each in losses]

    def _noticing_skips(self, scaler_step: Any) -> Any:
        @functools.wraps(scaler_step)
        def noticed(scaler: Any, *arguments: Any, **options: Any) -> Any:
            self._scaler, calls = scaler, self._calls
            try:
                return scaler_step(scaler, *arguments, **options)
            finally:
                if self._calls == calls:
                    self._skipped += 1
                    self._finite_losses.clear()
                    self.tell("skipped", count=self._skipped)

        return noticed

    def _stepped(self, optimizer: Any, _arguments: Any, _options: Any) -> None:
        self._calls += 1
        count = self._counts.get(optimizer, 0) + 1
        self._counts[optimizer] = count
        if count > self._step:
            self._step_ended(count)

    def _step_ended(self, count: int) -> None:
        card = _card(_parameters(list(self._counts)))
        now = time.perf_counter()
        self._step = count
        self.tell(
            "step",
            step=count,
            duration_s=None if self._last is None else now - self._last,
            passes=self._passes,
            is_loss_finite=all(map(bool, self._finite_losses)) if self._finite_losses else None,
            skipped=self._skipped,
            optimizers=len(self._counts),
            resident_peak_bytes=_status_bytes("VmHWM"),
            resident_file_bytes=_status_bytes("RssFile"),
            card=card,
        )
        self._passes = self._skipped = 0
        self._finite_losses.clear()
        if count in (_STATE_IS_RESIDENT, self._steps):
            self._tell_what_is_held()
        if count >= self._steps:
            self._end_process()
        self._last = time.perf_counter()

    def _tell_what_is_held(self) -> None:
        optimizers = list(self._counts)
        parameters = _parameters(optimizers)
        self.tell(
            "held",
            optimizers=sorted({type(each).__name__ for each in optimizers}),
            parameters_bytes=_bytes_of(parameters),
            gradients_bytes=_bytes_of([each.grad for each in parameters if each.grad is not None]),
            optimizer_state_bytes=_bytes_of(_state_tensors(optimizers)),
        )

    def _end_process(self) -> None:
        """Leave at once: no evaluation, no checkpoint, no exit handlers."""
        self._guarded(self._tell_the_end)()
        self._await_leave()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)

    def _tell_the_end(self) -> None:
        loss_scale = None if self._scaler is None else float(self._scaler.get_scale())
        self.tell("finished", is_finite=_are_finite(_parameters(list(self._counts))), loss_scale=loss_scale)

    def _await_leave(self) -> None:
        """Stay, idle, until memplan has asked the driver what this process holds."""
        deadline = time.monotonic() + _LEAVE_LIMIT_S
        while self._leave_folder is not None and time.monotonic() < deadline:
            if (Path(self._leave_folder) / str(os.getpid())).exists():
                return
            time.sleep(0.01)


class OptimizerFinder:
    """Finds torch's optimizer module as always, and has it observed once it is loaded; nothing else is touched."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's own spec, its loader followed by the observer; None for any other module."""
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loading = loader.exec_module

            def load_then_watch(module: Any) -> None:
                loading(module)
                self._observer._guarded(self._observer.watch_optimizers)(module)  # noqa: SLF001 - two halves of one thing

            loader.exec_module = load_then_watch
        return spec


def _cards_of(tensors: list[Any]) -> set[int]:
    return {each.device.index for each in tensors if each.is_cuda}


def _card(parameters: list[Any]) -> dict[str, int] | None:
    """Wait for the parameters' card, of several the fullest, and read its allocator; None where CUDA is not in use."""
    import torch  # noqa: PLC0415 - loaded by the script itself by now

    cuda: Any = torch.cuda
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():  # nothing may wait while a graph is captured
        return None
    index = max(sorted(_cards_of(parameters)), key=cuda.max_memory_reserved, default=cuda.current_device())
    cuda.synchronize(index)
    free_bytes, total_bytes = cuda.mem_get_info(index)
    return {
        "index": index,
        "allocated_peak_bytes": cuda.max_memory_allocated(index),
        "reserved_peak_bytes": cuda.max_memory_reserved(index),
        "reserved_bytes": cuda.memory_reserved(index),
        "used_bytes": total_bytes - free_bytes,
        "alloc_retries": int(cuda.memory_stats(index).get("num_alloc_retries", 0)),
    }


def _cap_card(index: int, limit_bytes: int) -> None:
    """Cap the allocator on a card; torch makes that card the current one to do so, and is set back."""
    import torch  # noqa: PLC0415 - as above

    with torch.cuda.device(index):
        total_bytes = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(limit_bytes / total_bytes, 1.0), index)


def _parameters(optimizers: list[Any]) -> list[Any]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return list({id(each): each for group in groups for each in group["params"]}.values())


def _state_tensors(optimizers: list[Any]) -> list[Any]:
    states = [state for optimizer in optimizers for state in optimizer.state.values() if isinstance(state, dict)]
    return [value for state in states for value in state.values() if hasattr(value, "untyped_storage")]


def _bytes_of(tensors: list[Any]) -> int:
    """Bytes of the tensors' storages, shared ones once."""
    storages = [each.untyped_storage() for each in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _are_finite(parameters: list[Any]) -> bool:
    import torch  # noqa: PLC0415 - as above

    with torch.no_grad():
        sums = [each.detach().sum(dtype=torch.float32) for each in parameters if each.is_floating_point()]
        return all(bool(torch.isfinite(each)) for each in sums)


def _limit_data(resident_bytes: int, thread_count: int) -> None:
    """Make allocations fail once far above the budget, so that a step never starves the machine.

    ``RLIMIT_DATA`` counts untouched pages, stacks of threads to come included; memplan itself holds the process to the
    budget by what is resident.
    """
    import resource  # noqa: PLC0415 - only where there is a limit

    soft_stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack_bytes = (8 << 20) if soft_stack == resource.RLIM_INFINITY else soft_stack
    slack_bytes = max(resident_bytes // 8, _RLIMIT_SLACK_BYTES) + 3 * thread_count * stack_bytes
    limit = _status_bytes("VmData") + max(resident_bytes - _status_bytes("VmRSS"), 0) + slack_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def _chain(error: BaseException) -> list[dict[str, object]]:
    """The exception and those it was raised from, each by the names of its types and its text."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return [{"types": [kind.__name__ for kind in type(each).__mro__], "text": str(each)[-4096:]} for each in found]


def _place(error: BaseException) -> str | None:
    """The innermost line outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and not frame.filename.startswith("<")]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def observe_this_process(settings: str) -> None:
    """Start observing, by the settings that memplan has left in the environment."""
    observer = Observer(**json.loads(settings))
    observer.tell("started")
    with contextlib.suppress(Exception):  # a standard error that is no file
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    with contextlib.suppress(OSError):  # where memory runs out, this process goes before the user's others
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    os.register_at_fork(after_in_child=observer.start_anew)
    observer.watch_uncaught()
    sys.meta_path.insert(0, OptimizerFinder(observer))


def run_the_next_sitecustomize() -> None:
    """Run the ``sitecustomize`` that this one stands before, if there is one."""
    sys.path[:] = [entry for entry in sys.path if str(Path(entry).resolve()) != _OWN_FOLDER]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as missing:
        if missing.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize":
    if SETTINGS_VARIABLE in os.environ:
        with contextlib.suppress(Exception):
            observe_this_process(os.environ[SETTINGS_VARIABLE])
    run_the_next_sitecustomize()
