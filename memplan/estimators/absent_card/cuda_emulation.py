"""CUDA calls of user code on a machine without a card: the traced tensors are CPU tensors."""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp import autocast_mode
from torch.autograd import graph
from torch.autograd.graph import saved_tensors_hooks
from torch.jit import _builtins as scripted
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from memplan.estimators.absent_card.card_answers import (
    NVTX,
    StandInGenerator,
    always,
    capturable_devices,
    card_answers,
    multi_tensor_by_default,
)
from memplan.estimators.absent_card.card_presence import CardPresence, is_written_for_cards
from memplan.estimators.absent_card.chunked_losses import settling_losses_on
from memplan.estimators.absent_card.compiled_extensions import runs_followed_operators
from memplan.estimators.absent_card.host_copies import HostCopies
from memplan.estimators.absent_card.tensor_types import setting_default
from memplan.estimators.fake_tensors.replaced import replaced
from memplan.user_places import calling_module, is_called_by_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    from memplan.devices.cards import DeviceSpec

_CARD = torch.device("cuda", 0)
_STREAMS = ("Stream", "Event", "current_stream", "stream")  # of ``torch.cpu``, on which collectives of FSDP run
_IS_CUDA = vars(torch._C.TensorBase)["is_cuda"].__get__  # noqa: SLF001 - where properties of tensors are
_IS_CPU = vars(torch._C.TensorBase)["is_cpu"].__get__  # noqa: SLF001 - as above
# By these PyTorch's functions choose slower code for tensors on a card, where results are to repeat.
_HAVING_SLOW_CODE = (_IS_CUDA, _IS_CPU)
_PLACE_PROPERTIES = {  # as function modes receive them
    vars(torch._C.TensorBase)["device"].__get__: _CARD,  # noqa: SLF001 - as above
    _IS_CUDA: True,
    torch.Tensor.get_device: 0,
}
# What optimizers ask about devices, by their types, and about the types of parameters.
_OF_OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "_get_capturable_supported_devices": capturable_devices,
    "_default_to_fused_or_foreach": multi_tensor_by_default,
}
_ASKING_FOR_OVERRIDES = tuple(
    (module, name)
    for module in (functional, torch.functional)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    if hasattr(module, name)
)
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.tensor, torch.arange})
_MOVES = {torch.Tensor.cpu: "cpu", torch.Tensor.cuda: "cuda"}
_entered: ContextVar[CudaEmulation | None] = ContextVar("_entered", default=None)
_REDIRECTED: dict[str, Callable[..., Any]] = {}  # PyTorch's own functions that tell of autocast, once they are not
_MOVING = frozenset({*_MOVES, torch.Tensor.to, torch.Tensor.type_as, torch.Tensor.pin_memory})
_PLACING = _MOVING | _FACTORIES


def _optimizers_with(name: str) -> list[ModuleType]:
    return [each for path, each in sys.modules.items() if path.startswith("torch.optim.") and hasattr(each, name)]


class CudaEmulation(TorchFunctionMode):
    """A function mode that replaces CUDA devices in calls by the CPU, and ``torch.cuda`` by the card's answers.

    PyTorch and installed packages see that there is no GPU; properties of the card are the same for all. The mode is
    also active in hooks of saved tensors and in the backward pass, which PyTorch runs without function modes.

    Args:
        device: the card.
        capability: its compute capability, assumed where only a size is known.
        is_seen: whether the user's own files see a GPU; if so, "cpu" is the host for them.
    """

    def __init__(self, device: DeviceSpec, capability: tuple[int, int], *, is_seen: bool = True) -> None:
        super().__init__()
        self.presence = CardPresence(device.name, is_seen=is_seen)
        self.host_copies = HostCopies()
        self._answers = card_answers(device, capability)
        self._replacements = ExitStack()

    def __enter__(self) -> Self:
        """Replace the functions of ``torch.cuda``."""
        for module, name, answer in self.presence.answers():
            self._replace(module, name, answer)
        for name in _STREAMS:
            self._replace(torch.cpu, name, self._answers[name])  # where FSDP runs its collectives, and tensors are
        for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
            for name in self._answers.keys() & vars(module).keys():
                self._replace(module, name, self._answers[name])
        for name in NVTX:
            self._replace(torch.cuda.nvtx, name, always(0))
        for name, answer in _OF_OPTIMIZERS.items():
            for module in _optimizers_with(name):
                self._replace(module, name, answer)
        for module, name in _ASKING_FOR_OVERRIDES:
            self._replace(module, name, _asking_without_emulation(getattr(module, name)))
        self._replacements.enter_context(settling_losses_on(_CARD))
        self._replace(torch, "Generator", StandInGenerator)
        self._replace(torch, "set_default_tensor_type", setting_default(torch.set_default_tensor_type))
        self._replace(torch.Tensor, "record_stream", always(None))
        self._replace(saved_tensors_hooks, "__init__", self._with_mode_in_hooks(saved_tensors_hooks.__init__))
        device: Any = FakeTensor.device  # a property that bypasses function modes
        self._replace(FakeTensor, "device", property(functools.partial(self._device_of, device.fget)))
        run_backward = self._with_mode(graph._engine_run_backward)  # noqa: SLF001 - the engine's only entry point
        self._replace(torch.autograd, "_engine_run_backward", run_backward)
        self._replacements.callback(_entered.reset, _entered.set(self))
        super().__enter__()  # type: ignore[no-untyped-call]  # untyped in torch
        return self

    def __exit__(self, *ending: object) -> None:
        """Restore the functions of ``torch.cuda``."""
        self._replacements.close()
        super().__exit__(*ending)  # type: ignore[no-untyped-call]  # untyped in torch

    def _replace(self, owner: Any, name: str, stand_in: Any) -> None:
        self._replacements.enter_context(replaced(owner, name, stand_in))

    def _with_mode_in_hooks(self, make: Callable[..., None]) -> Callable[..., None]:
        def init(hooks: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
            make(hooks, self._with_mode(pack_hook), self._with_mode(unpack_hook))

        return init

    def _with_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.active():
                return function(*args, **kwargs)

        return call

    @contextmanager
    def active(self) -> Iterator[None]:
        """Activate the mode where PyTorch has disabled function modes."""
        if self in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]  # untyped in torch
            yield
            return
        super().__enter__()  # type: ignore[no-untyped-call]  # untyped in torch
        try:
            yield
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]  # untyped in torch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the call on the CPU in place of the card."""
        kwargs = kwargs or {}
        if func in _HAVING_SLOW_CODE and torch.are_deterministic_algorithms_enabled():
            is_asked = calling_module() == functional.__name__ and isinstance(args[0], FakeTensor)
            if is_asked and not self.host_copies.holds(args[0]):
                return func == _IS_CUDA
        if func in _PLACE_PROPERTIES:
            module = calling_module()
            runs_kernels = func == _IS_CUDA and runs_followed_operators(module)
            is_asked = is_called_by_user() or (runs_kernels and isinstance(args[0], FakeTensor))
            is_seen = self._is_seen_by(module, args[0], is_asked=is_asked)
            return _PLACE_PROPERTIES[func] if is_seen else func(*args, **kwargs)
        if func in _PLACING or "device" in kwargs or "pin_memory" in kwargs:
            return self._placed(calling_module(), func, args, kwargs)
        return func(*args, **kwargs)

    def _placed(self, module: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a library, or of user code, that makes or moves tensors, on the CPU in place of the card."""
        if is_written_for_cards(module):
            args, kwargs = _with_host_by_name(func, args, kwargs)
        return self._moved_by(func, args, kwargs) if func in _MOVING else self._made(func, args, kwargs)

    def _moved_by(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a method that moves tensors, on the CPU in place of the card."""
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func in _MOVES:
            args = (args[0], _MOVES[func])
            kwargs = {name: value for name, value in kwargs.items() if name == "memory_format"}
        return self._moved(*args, **kwargs)

    def _made(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call on the CPU in place of the card; its result is on the device that the call names."""
        place = kwargs.get("device")
        if _is_cuda(place):
            kwargs = {**kwargs, "device": "cpu"}
        is_on_host = bool(self._means_host(place))
        if "pin_memory" in kwargs:
            is_on_host |= self.presence.is_seen and _is_made_on_host(args, kwargs)
            kwargs = {**kwargs, "pin_memory": False}
        if is_on_host and is_in_torch_dispatch_mode():
            with self.host_copies.moving(to_host=True):
                return func(*args, **kwargs)
        made = func(*args, **kwargs)
        if self._means_host(place) is False and isinstance(made, torch.Tensor) and self.host_copies.holds(made):
            return self.host_copies.moved(made, to_host=False, device="cpu", copy=True)
        if _is_cuda(place):
            self.host_copies.note_on_card(made)
        return made

    def _device_of(self, read: Callable[[FakeTensor], torch.device], tensor: FakeTensor) -> torch.device:
        is_seen = self._is_seen_by(calling_module(), tensor, is_asked=is_called_by_user())
        return _CARD if is_seen else read(tensor)

    def _is_seen_by(self, module: str, tensor: torch.Tensor, *, is_asked: bool) -> bool:
        """Whether code of a module sees a tensor on the card; if not written for cards, only where it may ask."""
        if is_written_for_cards(module):
            return self._is_on_card(tensor)
        return is_asked and self._is_seen_on_card(tensor)

    def _is_seen_on_card(self, tensor: torch.Tensor) -> bool:
        """Whether user code sees the tensor on the card, which is recorded."""
        is_there = self._is_on_card(tensor)
        self.presence.has_seen_tensors |= is_there
        return is_there

    def _is_on_card(self, tensor: torch.Tensor) -> bool:
        return self.presence.is_seen and is_in_torch_dispatch_mode() and not self.host_copies.holds(tensor)

    def _moved(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run ``Tensor.to`` on the CPU in place of the card."""
        named = [*args[:1], kwargs.get("device"), kwargs.get("other")]
        to_host = next((on_host for each in named if (on_host := self._means_host(each)) is not None), None)
        on_card = any(map(_is_cuda, named))
        args = tuple("cpu" if _is_cuda(each) else each for each in args)
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if to_host in (None, self.host_copies.holds(tensor)) or not is_in_torch_dispatch_mode():
            moved = tensor.to(*args, **kwargs)
            if on_card:
                self.host_copies.note_on_card(moved)
            return moved
        return self.host_copies.moved(tensor, *args, to_host=to_host, **{**kwargs, "copy": True})

    def _means_host(self, place: Any) -> bool | None:
        """Whether a place is the host; None if it is no place.

        A device object that a package read from a tensor is the CPU and means the card; the host is "cpu" by name.
        """
        if isinstance(place, torch.Tensor):
            return self.host_copies.holds(place)
        if isinstance(place, str):
            return place == "cpu" and self.presence.is_seen
        return False if isinstance(place, torch.device | int) else None


@functools.cache  # TorchScript knows it by its address
def _asking_without_emulation(asks: Callable[..., bool]) -> Callable[..., bool]:
    """Let functions of PyTorch written in Python ask for overrides as if the emulation, which has none, were not there.

    They would call themselves through it (``handle_torch_function``), and that call would hold their arguments until
    they return, also those that they replace halfway.
    """

    def is_overridden(*arguments: Any) -> bool:
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # untyped in torch
        if len(modes) != 1 or not isinstance(modes[0], CudaEmulation):
            return asks(*arguments)
        with _pop_mode_temporarily():
            return asks(*arguments)

    scripted._register_builtin(is_overridden, "aten::has_torch_function")  # noqa: SLF001 - as the asking functions are
    return is_overridden


def emulation_resumed() -> AbstractContextManager[None]:
    """Emulate CUDA for user code that runs within an operator, where PyTorch has disabled function modes."""
    emulation = _entered.get()
    return nullcontext() if emulation is None else emulation.active()


@contextmanager
def emulation_suspended() -> Iterator[None]:
    """Let a compiler find PyTorch as it is while the context is open, but for autocast regions, which act on the CPU.

    Does nothing within function modes of others.
    """
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # untyped in torch
    if len(modes) != 1 or not isinstance(modes[0], CudaEmulation):
        yield
        return
    (emulation,) = modes
    emulation.__exit__(None, None, None)
    try:
        with ExitStack() as stack:
            for name, function in _REDIRECTED.items():
                stack.enter_context(replaced(torch, name, function))
            yield
    finally:
        emulation.__enter__()


def redirect_cuda_autocast() -> None:
    """Make ``torch.autocast("cuda")`` act on CPU tensors, and tell of it, for the rest of this process."""
    original = torch.autocast.__init__

    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, enabled, cache_enabled)

    for name in ("is_autocast_enabled", "get_autocast_dtype", "get_autocast_gpu_dtype"):
        _REDIRECTED.setdefault(name, getattr(torch, name))

    torch.autocast.__init__ = init  # type: ignore[method-assign]  # used by all autocast contexts
    torch.is_autocast_enabled = _asking_of_cpu(torch.is_autocast_enabled)
    torch.get_autocast_dtype = _asking_of_cpu(torch.get_autocast_dtype)
    torch.get_autocast_gpu_dtype = functools.partial(torch.get_autocast_dtype, "cpu")
    cast = autocast_mode._cast  # noqa: SLF001 - by which ``custom_fwd`` converts tensors of a device
    autocast_mode._cast = lambda value, device_type, dtype: cast(value, _traced(device_type), dtype)  # noqa: SLF001


def _asking_of_cpu(query: Callable[[str], Any]) -> Callable[..., Any]:
    """Let a question about CUDA's autocast, which is what it is without a device, be one about the CPU's."""

    def answer(device_type: str = "cuda") -> Any:
        return query(_traced(device_type))

    return answer


def _traced(device_type: str) -> str:
    return "cpu" if device_type == "cuda" else device_type


def _is_made_on_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a new tensor is on the host: pinned, or without a device or a tensor to copy it from."""
    is_like_another = bool(args) and isinstance(args[0], torch.Tensor)
    return bool(kwargs["pin_memory"]) or (kwargs.get("device") is None and not is_like_another)


def _with_host_by_name(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Name the host where arguments have its device, or none: code that sees tensors on the card means it then."""

    def named(value: Any) -> Any:
        return "cpu" if isinstance(value, torch.device) and value.type == "cpu" else value

    by_default = {"device": "cpu"} if func in _FACTORIES else {}
    return tuple(map(named, args)), by_default | {name: named(value) for name, value in kwargs.items()}


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith("cuda")
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, int) and not isinstance(value, bool)  # the index of a card
