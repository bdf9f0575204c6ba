"""What the hook inside a training script reads of its process and its cards, and the caps it sets: copied beside it.

Standard library and torch only, any Python that runs torch. torch is imported by the script itself before any function
here that needs it is called.
"""

from __future__ import annotations

import gc
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

_RLIMIT_SLACK_BYTES = 128 << 20
_NEAR_BUDGET_SHARE = 0.9
_SCRIPT_FOLDERS = tuple({sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")})


def _cards_of(tensors: list[Any]) -> set[int]:
    """Return CUDA's numbers of the cards on which some of the tensors are."""
    return {each.device.index for each in tensors if each.is_cuda}


def card_figures(parameters: list[Any]) -> dict[str, int] | None:
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


def leave_search_out(index: int) -> None:
    """Forget the peaks and retries of cuDNN's search for algorithms: it takes what is free, and gives it back."""
    import torch  # noqa: PLC0415 - as above

    if torch.backends.cudnn.benchmark:
        torch.cuda.reset_peak_memory_stats(index)
        torch.cuda.reset_accumulated_memory_stats(index)


class CardCap:
    """Caps the allocator on the cards that a process uses, on each of them once.

    On a card that is not in use, capping would make a context.

    Args:
        limit_bytes: what the allocator may take of each card; None for all.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._indices: set[int] = set()

    def apply_to_cards_of(self, tensors: list[Any]) -> None:
        """Cap the cards of some tensors; the current card stays current."""
        if self._limit_bytes is None:
            return
        import torch  # noqa: PLC0415 - as above

        for index in _cards_of(tensors) - self._indices:
            self._indices.add(index)
            with torch.cuda.device(index):
                total_bytes = torch.cuda.get_device_properties(index).total_memory
                torch.cuda.set_per_process_memory_fraction(min(self._limit_bytes / total_bytes, 1.0), index)

    def is_nearly_reached(self) -> bool:
        """Whether the allocator has come near its limit on one of the cards."""
        if self._limit_bytes is None or not self._indices:
            return False
        import torch  # noqa: PLC0415 - as above; a process without torch asks too, and caps no card

        near_bytes = _NEAR_BUDGET_SHARE * self._limit_bytes
        return any(torch.cuda.max_memory_reserved(index) >= near_bytes for index in self._indices)


def parameters_of(optimizers: list[Any]) -> list[Any]:
    """Return the parameters of some optimizers, shared ones once."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return list({id(each): each for group in groups for each in group["params"]}.values())


def rate_of(optimizers: list[Any]) -> float | None:
    """Return the highest rate of the first optimizer's schedule, as far as it says; None where it has no rate.

    ``OneCycleLR`` and its like keep it in ``max_lr``, other schedules begin at ``initial_lr``, and without one it is
    what the optimizer was made with.
    """
    if not optimizers:
        return None
    group = optimizers[0].param_groups[0]
    made_with = getattr(optimizers[0], "defaults", {}).get("lr")
    rate = group.get("max_lr", group.get("initial_lr", made_with))
    return None if rate is None else float(rate)


def higher_rate(rate: float | None, optimizer: Any) -> float | None:
    """Return the higher of a rate and the one that an optimizer has just stepped with."""
    taken = optimizer.param_groups[0].get("lr")
    return rate if taken is None else max(float(taken), rate or 0.0)


def parameters_beside(trained: list[Any]) -> list[Any]:
    """Return all parameters of this process where some are trained, the frozen ones included."""
    import torch  # noqa: PLC0415 - as above

    places = {each.device for each in trained}
    # ``isinstance`` would run code of proxies.
    alive = (each for each in gc.get_objects() if issubclass(type(each), torch.nn.Parameter))
    return [*trained, *(each for each in alive if each.device in places)]


def leaves_of(losses: list[Any]) -> list[Any]:
    """Return the tensors whose gradients a backward pass will leave in them, by the graph that led to some losses."""
    found, seen, nodes = [], set(), [getattr(each, "grad_fn", None) for each in losses]  # an edge has none
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)
        nodes += [following for following, _ in node.next_functions]
    return found


def state_tensors_of(optimizers: list[Any]) -> list[Any]:
    """Return the tensors that some optimizers keep from step to step."""
    states = [state for optimizer in optimizers for state in optimizer.state.values() if isinstance(state, dict)]
    return [value for state in states for value in state.values() if hasattr(value, "untyped_storage")]


def bytes_of(tensors: list[Any]) -> int:
    """Return the bytes of the tensors' storages, shared ones once."""
    storages = [each.untyped_storage() for each in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def are_finite(parameters: list[Any]) -> bool:
    """Whether no parameter has become infinite or NaN, by their sums."""
    import torch  # noqa: PLC0415 - as above

    with torch.no_grad():
        sums = [each.detach().sum(dtype=torch.float32) for each in parameters if each.is_floating_point()]
        return all(bool(torch.isfinite(each)) for each in sums)


def limit_data(resident_bytes: int, thread_count: int) -> None:
    """Make allocations fail once far above the budget, so that a step never starves the machine.

    ``RLIMIT_DATA`` counts untouched pages, stacks of threads to come included; memplan itself holds the process to the
    budget by what is resident.
    """
    import resource  # noqa: PLC0415 - only where there is a limit

    soft_stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack_bytes = (8 << 20) if soft_stack == resource.RLIM_INFINITY else soft_stack
    slack_bytes = max(resident_bytes // 8, _RLIMIT_SLACK_BYTES) + 3 * thread_count * stack_bytes
    limit = status_bytes("VmData") + max(resident_bytes - status_bytes("VmRSS"), 0) + slack_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def status_bytes(name: str) -> int:
    """Return a figure of ``/proc/self/status`` in bytes; 0 where it is missing."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def chain_of(error: BaseException) -> list[dict[str, object]]:
    """Return the exception and those it was raised from, each by the names of its types and its text."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return [{"types": [kind.__name__ for kind in type(each).__mro__], "text": str(each)[-4096:]} for each in found]


def place_of(error: BaseException) -> str | None:
    """Name the innermost line of the user's own files; where none is on the way, as in ``yolo train``, of a package.

    Not named are Python's own library, PyTorch, the starters of console scripts and what observes the script.
    """
    torch = sys.modules.get("torch")
    skipped = ("<", str(Path(__file__).parent), *_SCRIPT_FOLDERS, *(() if torch is None else torch.__path__))
    library = sysconfig.get_path("stdlib")
    named = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(skipped)]
    packages = [each for each in named if "-packages" in each.filename]
    own = [each for each in named if each not in packages and not each.filename.startswith(library)]
    return next((f"{each.filename}:{each.lineno}" for each in (*own[-1:], *packages[-1:])), None)
