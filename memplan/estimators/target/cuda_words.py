"""User code that names CUDA, understood on a machine without it: the traced tensors are CPU tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch.overrides import TorchFunctionMode

from memplan.estimators.user_places import users_place_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable


class CudaWords(TorchFunctionMode):
    """Reads every CUDA device in a call as the CPU, which stands in for the card.

    Whether there is a GPU is answered truthfully, because PyTorch itself asks too; where the user's code asked is kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, None] = {}
        self._asks = torch.cuda.is_available

    def __enter__(self) -> Self:
        """Listen to questions for a GPU."""

        def is_available() -> bool:
            place = users_place_of_caller()
            if place is not None:
                self._places.setdefault(place)
            return self._asks()

        torch.cuda.is_available = is_available
        super().__enter__()  # type: ignore[no-untyped-call]  # untyped in torch
        return self

    def __exit__(self, *ending: object) -> None:
        """Listen no longer."""
        torch.cuda.is_available = self._asks
        super().__exit__(*ending)  # type: ignore[no-untyped-call]  # untyped in torch

    @property
    def notes(self) -> tuple[str, ...]:
        """Say where the user's code asked for a GPU, one sentence."""
        if not self._places:
            return ()
        asked = ", ".join(self._places)
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
