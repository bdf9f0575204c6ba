"""Whether user code sees a GPU, and where it checked; most packages and PyTorch see that there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.absent_card import chunked_losses
from memplan.estimators.absent_card.compiled_extensions import runs_followed_operators
from memplan.user_places import calling_module, users_place_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable

# Code that is another for other devices, which is not what is asked for.
_PACKAGE_FOR_CARDS = "deepspeed"
_CHECKS = (
    (torch.cuda, {"is_available": True, "device_count": 1}),
    (torch.accelerator, {"is_available": True, "device_count": 1, "current_accelerator": torch.device("cuda")}),
)


def is_written_for_cards(module: str) -> bool:
    """Whether a module always runs as on the card, and sees its tensors there as user code does."""
    return module.startswith(chunked_losses.MODULES) or module.partition(".")[0] == _PACKAGE_FOR_CARDS


class CardPresence:
    """Replaces the checks for a GPU, and records where user code runs them.

    Args:
        device_name: the card.
        is_seen: whether the user's own files see a GPU.
    """

    def __init__(self, device_name: str, *, is_seen: bool) -> None:
        self._device_name = device_name
        self.is_seen = is_seen
        self.has_seen_tensors = False  # on the card
        self._places: dict[str, None] = {}

    def answers(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        """Return the replacement of each check for a GPU, with its module and name."""
        return [
            (module, name, self._answering(getattr(module, name), seen))
            for module, checks in _CHECKS
            for name, seen in checks.items()
        ]

    def _answering(self, check: Callable[..., Any], seen: Any) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            place = users_place_of_caller()
            if place is None:
                module = calling_module()
                is_seen = self.is_seen and (is_written_for_cards(module) or runs_followed_operators(module))
                return seen if is_seen else check(*args, **kwargs)
            self._places.setdefault(place)
            return seen if self.is_seen else check(*args, **kwargs)

        return answer

    @property
    def was_consulted(self) -> bool:
        """Whether user code checked for a GPU, or whether a tensor is on one."""
        return bool(self._places) or self.has_seen_tensors

    @property
    def notes(self) -> tuple[str, ...]:
        """Say where user code checked for a GPU and what it saw, in one phrase."""
        checked = ", ".join(self._places)
        if self.is_seen:
            return (f"code that checks for a GPU ({checked}) sees {self._device_name}",) if checked else ()
        if not checked:
            return ("tensors report the CPU as their device here: code for tensors on a GPU is left out",)
        return (f"torch.cuda.is_available() is called and false here ({checked}): code for a GPU is left out",)
