"""What observes a training script from inside: each trial copies this file as ``sitecustomize.py`` before the script.

Python runs it at the start of every process of the command. It waits until the process imports torch's optimizers, if
it ever does and no ``.pth`` file has before, and then listens on torch's global optimizer-step hooks. What it sees goes
line by line into a file that memplan reads. Standard library and torch only, any Python that runs torch, and
``hook_figures``, ``hook_loaders`` and ``late_imports``, which are copied with it; whatever fails in here is reported
and never reaches the script.

A *step* is a step of the optimizer that has stepped most often, so that a script with several optimizers counts its
iterations once. A step that a gradient scaler skips is none; it is counted as skipped within the step that follows.
Where a process goes backward again and again without an optimizer of torch's, as with fastai's own or with updates by
hand, a step is all from one backward pass to the next.
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

if __name__ == "sitecustomize":  # a copy, in whatever Python the script runs: memplan itself may not be there
    import memplan_hook_figures as figures
    import memplan_hook_loaders as loaders
    import memplan_late_imports as late_imports
else:
    from memplan import late_imports
    from memplan.probe.commands import hook_figures as figures
    from memplan.probe.commands import hook_loaders as loaders

SETTINGS_VARIABLE = "MEMPLAN_OBSERVE"
_OPTIMIZERS = "torch.optim.optimizer"
_LOADERS = "torch.utils.data.dataloader"
_PASSES_WITHOUT_OPTIMIZER = 3  # after as many, none is waited for; one made later is heeded
_STATE_IS_RESIDENT = 2  # optimizer steps after which state exists and gradients have been freed once
_LEAVE_LIMIT_S = 5.0
_OWN_FOLDER = str(Path(__file__).resolve().parent)


class Observer:
    """Observes one process of the command; a forked process starts afresh.

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
        self._loaders = loaders.LoaderWatch(self.tell)
        self.reset()

    def reset(self) -> None:
        """Forget everything seen so far."""
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._scaler: Any = None
        self._is_built = False
        self._imported_bytes = self._early_passes = 0
        self._leaves: list[weakref.ref[Any]] = []
        self._card_cap = figures.CardCap(self._card_limit_bytes)
        self._step = self._calls = self._passes = self._skipped = self._depth = 0
        self._passes_in_closure: int | None = None
        self._finite_losses: list[Any] = []
        self._highest_rate: float | None = None
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
        """Report an uncaught exception before it is printed as usual."""
        printing = sys.excepthook

        def tell_then_print(kind: Any, error: BaseException, trace: Any) -> None:
            with contextlib.suppress(Exception):
                told = {"chain": figures.chain_of(error), "place": figures.place_of(error)}
                self.tell("raised", **told, is_card_full=self._card_cap.is_nearly_reached())
            printing(kind, error, trace)

        sys.excepthook = tell_then_print

    def watch_optimizers(self, module: Any) -> None:
        """Listen to torch's optimizers and backward passes; called once the optimizers' module is loaded."""
        self._imported_bytes = figures.status_bytes("VmRSS")
        self.tell("imported")
        autograd = sys.modules["torch.autograd"]
        autograd.backward = self._counting_passes(autograd.backward)  # type: ignore[attr-defined]  # a module's own
        module.register_optimizer_step_pre_hook(self.guarded(self.on_step_begins))
        module.register_optimizer_step_post_hook(self.guarded(self.on_step))
        making = module.Optimizer.__init__

        @functools.wraps(making)
        def make_then_look(optimizer: Any, *arguments: Any, **options: Any) -> None:
            making(optimizer, *arguments, **options)
            if not self._is_built:
                self.guarded(self._built)(optimizer)

        module.Optimizer.__init__ = make_then_look

    def watch_loaders(self, module: Any) -> None:
        """Look at what PyTorch's data loaders can fill; called once their module is loaded."""
        self._loaders.watch(module)

    def guarded(self, work: Any) -> Any:
        """Return a function that does the same, and reports what it raises instead of raising it in the script."""

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
        self._forget_passes()
        if not hasattr(torch.amp.GradScaler.step, "_watched_by_memplan"):
            torch.amp.GradScaler.step = self._noticing_skips(torch.amp.GradScaler.step)  # type: ignore[method-assign]  # to see the steps that it leaves out
        parameters = figures.parameters_beside(figures.parameters_of([optimizer]))
        self._begin(parameters, figures.status_bytes("VmRSS"))

    def _forget_passes(self) -> None:
        self._step = self._passes = 0
        self._leaves.clear()
        self._finite_losses.clear()
        self._last = None

    def _begin(self, parameters: list[Any], resident_bytes: int) -> None:
        """Tell what was resident before the first step, parameters included, and set the limits."""
        import torch  # noqa: PLC0415 - as above

        self.tell("built", resident_bytes=resident_bytes, parameters_bytes=figures.bytes_of(parameters))
        if self._resident_limit_bytes is not None:
            figures.limit_data(self._resident_limit_bytes, torch.get_num_threads())
        self._card_cap.apply_to_cards_of(parameters)

    def _counting_passes(self, backward: Any) -> Any:
        @functools.wraps(backward)
        def counted(*arguments: Any, **options: Any) -> Any:
            if not self._depth:  # reentrant checkpointing goes backward within a backward pass
                given = arguments[0] if arguments else options["tensors"]
                self.guarded(self.on_backward)(list(given) if isinstance(given, (list, tuple)) else [given])
            self._depth += 1
            try:
                return backward(*arguments, **options)
            finally:
                self._depth -= 1

        return counted

    def on_backward(self, given: list[Any]) -> None:
        """Count a pass, and keep whether its losses are finite, as one byte each: a loss may be a view of much more.

        A pass on the meta device, by which operations are counted before training, is none.
        """
        import torch  # noqa: PLC0415 - as above

        if any(getattr(each, "is_meta", False) for each in given):  # an edge of a graph does not say
            return
        if not self._is_built:
            self._on_pass_without_optimizer(given)
        if not self._passes_in_closure:  # an optimizer that looks along a line goes backward from one batch again
            self._passes += 1
        if self._passes_in_closure is not None:
            self._passes_in_closure += 1
        losses = [each for each in given if each.numel() == 1]
        self._card_cap.apply_to_cards_of(losses)  # of a model that was moved after its optimizer was made
        with torch.no_grad():
            self._finite_losses += [torch.isfinite(each) for each in losses]

    def _on_pass_without_optimizer(self, given: list[Any]) -> None:
        """Count a step of an optimizer that is not torch's: it ends where the next pass begins."""
        self._early_passes += 1
        count = self._early_passes - _PASSES_WITHOUT_OPTIMIZER
        if not count:
            self._forget_passes()
            self._leaves = [weakref.ref(each) for each in figures.leaves_of(given)]
            parameters = figures.parameters_beside(self._parameters())
            self._begin(parameters, self._imported_bytes + figures.bytes_of(parameters))
            self._last = time.perf_counter()
        elif count > 0:
            self._step_ended(count)
            if count >= self._steps:
                self._end_process()

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

        noticed._watched_by_memplan = True  # type: ignore[attr-defined]  # noqa: SLF001 - a mark of its own
        return noticed

    def on_step_begins(self, _optimizer: Any, _arguments: Any, _options: Any) -> None:
        """Begin to count the passes that a closure makes within the step."""
        self._passes_in_closure = 0

    def on_step(self, optimizer: Any, _arguments: Any, _options: Any) -> None:
        """Count a step of one optimizer; torch calls it after each."""
        self._calls += 1
        self._passes_in_closure = None
        self._highest_rate = figures.higher_rate(self._highest_rate, optimizer)
        count = self._counts.get(optimizer, 0) + 1
        self._counts[optimizer] = count
        if count > self._step:
            self.guarded(self._step_ended)(count)
            if count >= self._steps:
                self._end_process()

    def _step_ended(self, count: int) -> None:
        card = figures.card_figures(self._parameters())
        now = time.perf_counter()
        self._step = count
        self.tell(
            "step",
            step=count,
            duration_s=None if self._last is None else now - self._last,
            passes=self._passes,
            is_loss_finite=self._are_losses_finite(),
            skipped=self._skipped,
            optimizers=len(self._counts),
            resident_peak_bytes=figures.status_bytes("VmHWM"),
            resident_file_bytes=figures.status_bytes("RssFile"),
            loaders=self._loaders.step_ended(),
            card=card,
        )
        if count == 1 and card is not None:
            figures.leave_search_out(card["index"])
        self._passes = self._skipped = 0
        if count in (_STATE_IS_RESIDENT, self._steps):
            self._tell_what_is_held()
        self._last = time.perf_counter()

    def _parameters(self) -> list[Any]:
        """What is trained: the optimizers' parameters or, where torch has none, the leaves of an early pass."""
        leaves = [tensor for each in self._leaves if (tensor := each()) is not None]
        return leaves or figures.parameters_of(list(self._counts))

    def _are_losses_finite(self) -> bool | None:
        """Whether all losses of a step are; None where there are none, or they cannot be read."""
        kept, self._finite_losses = self._finite_losses, []
        found: list[bool] = []
        self.guarded(lambda: found.append(all(map(bool, kept))))()
        return found[0] if kept and found else None

    def _tell_what_is_held(self) -> None:
        optimizers, parameters = list(self._counts), self._parameters()
        self.tell(
            "held",
            optimizers=sorted({type(each).__name__ for each in optimizers}),
            parameters_bytes=figures.bytes_of(figures.parameters_beside(parameters)),
            gradients_bytes=figures.bytes_of([each.grad for each in parameters if each.grad is not None]),
            optimizer_state_bytes=figures.bytes_of(figures.state_tensors_of(optimizers)),
            learning_rate=figures.rate_of(optimizers),
            highest_rate_taken=self._highest_rate,
        )

    def _end_process(self) -> None:
        """Leave at once: no evaluation, no checkpoint, no exit handlers."""
        self.guarded(self._tell_the_end)()
        self._await_leave()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)

    def _tell_the_end(self) -> None:
        loss_scale = None if self._scaler is None else float(self._scaler.get_scale())
        is_finite = figures.are_finite(self._parameters())
        self.tell("finished", is_finite=is_finite, loss_scale=loss_scale, folder_of_workers=_folder_of_workers())

    def _await_leave(self) -> None:
        """Stay, idle, until memplan has asked the driver what this process holds."""
        deadline = time.monotonic() + _LEAVE_LIMIT_S
        while self._leave_folder is not None and time.monotonic() < deadline:
            if (Path(self._leave_folder) / str(os.getpid())).exists():
                return
            time.sleep(0.01)


def _folder_of_workers() -> str | None:
    """Return the folder that ``multiprocessing`` makes for data loaders' workers, and would remove at exit."""
    process = sys.modules.get("multiprocessing.process")
    return None if process is None else process.current_process()._config.get("tempdir")  # noqa: SLF001 - there is no other way


def observe_this_process(settings: str) -> None:
    """Start observing, by the settings that memplan has left in the environment."""
    observer = Observer(**json.loads(settings))
    observer.tell("started")
    with contextlib.suppress(Exception):  # a standard error that is no file
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    with contextlib.suppress(OSError):  # where memory runs out, this process goes before the user's others
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    os.register_at_fork(after_in_child=observer.reset)
    observer.watch_uncaught()
    for name, watch in ((_OPTIMIZERS, observer.watch_optimizers), (_LOADERS, observer.watch_loaders)):
        late_imports.work_once_imported(name, observer.guarded(watch))


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
