"""User code that names CUDA, understood on a machine without it: the traced tensors are CPU tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch.overrides import TorchFunctionMode

from memplan.estimators.target.card_answers import card_answers
from memplan.estimators.user_places import users_place_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.devices.cards import DeviceSpec

_PRESENCE = {"is_available": True, "device_count": 1}


class CudaWords(TorchFunctionMode):
    """Reads every CUDA device in a call as the CPU, which stands in for the card, and answers for the card.

    PyTorch itself and installed packages are told the truth of whether there is a GPU; what it can do, all are told as
    of the card. Where the user's code asked is kept.

    Args:
        device: the card.
        capability: its compute capability, assumed where only a size is known.
        is_seen: whether the user's own files are told that there is a GPU.
    """

    def __init__(self, device: DeviceSpec, capability: tuple[int, int], *, is_seen: bool = True) -> None:
        super().__init__()
        self._device_name = device.name
        self._is_seen = is_seen
        self._answers = card_answers(device, capability)
        self._replaced: dict[str, Callable[..., Any]] = {}
        self._places: dict[str, None] = {}

    def __enter__(self) -> Self:
        """Answer from here on."""
        for name, value in _PRESENCE.items():
            self._replace(name, self._presence(getattr(torch.cuda, name), value))
        for name, answer in self._answers.items():
            self._replace(name, answer)
        super().__enter__()  # type: ignore[no-untyped-call]  # untyped in torch
        return self

    def __exit__(self, *ending: object) -> None:
        """Leave the answers to PyTorch again."""
        for name, function in self._replaced.items():
            setattr(torch.cuda, name, function)
        super().__exit__(*ending)  # type: ignore[no-untyped-call]  # untyped in torch

    def _replace(self, name: str, answer: Callable[..., Any]) -> None:
        self._replaced[name] = getattr(torch.cuda, name)
        setattr(torch.cuda, name, answer)

    def _presence(self, ask: Callable[[], int], value: int) -> Callable[[], int]:
        def answer() -> int:
            place = users_place_of_caller()
            if place is None:
                return ask()
            self._places.setdefault(place)
            return value if self._is_seen else ask()

        return answer

    @property
    def was_asked(self) -> bool:
        """Whether the user's code asked for a GPU."""
        return bool(self._places)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say where the user's code asked for a GPU and what it was told, one sentence."""
        if not self._places:
            return ()
        asked = ", ".join(self._places)
        if self._is_seen:
            return (f"Code that asks for a GPU ({asked}) is told of {self._device_name}.",)
        return (f"torch.cuda.is_available() is asked for and false here ({asked}): what a GPU alone runs is left out.",)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the call on the stand-in device."""
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple("cpu" if _is_cuda(each) else each for each in args)
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def understand_cuda_autocast() -> None:
    """Let ``torch.autocast("cuda")`` act on the stand-in tensors for the rest of this process."""
    original = torch.autocast.__init__

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]  # the one door through which all contexts go


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith("cuda")
    return isinstance(value, torch.device) and value.type == "cuda"
