"""Whether user code is told that there is a card, and where it asked; packages and PyTorch are told the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.user_places import users_place_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable

_QUESTIONS = (
    (torch.cuda, {"is_available": True, "device_count": 1}),
    (torch.accelerator, {"is_available": True, "device_count": 1, "current_accelerator": torch.device("cuda")}),
)


class CardPresence:
    """Answers for a card that is not there, and remembers where that was asked.

    Args:
        device_name: the card.
        is_seen: whether the user's own files are told that there is one.
    """

    def __init__(self, device_name: str, *, is_seen: bool) -> None:
        self._device_name = device_name
        self.is_seen = is_seen
        self.was_told_of_tensors = False  # that they lie on the card
        self._places: dict[str, None] = {}

    def answers(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        """Return what stands for each function that says whether there is a card: its module, its name, and itself."""
        return [
            (module, name, self._answering(getattr(module, name), told))
            for module, questions in _QUESTIONS
            for name, told in questions.items()
        ]

    def _answering(self, ask: Callable[..., Any], told: Any) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            place = users_place_of_caller()
            if place is None:
                return ask(*args, **kwargs)
            self._places.setdefault(place)
            return told if self.is_seen else ask(*args, **kwargs)

        return answer

    @property
    def was_asked(self) -> bool:
        """Whether the user's code asked for a card, or whether a tensor lies on one."""
        return bool(self._places) or self.was_told_of_tensors

    @property
    def notes(self) -> tuple[str, ...]:
        """Say where the user's code asked for a card and what it was told, one sentence."""
        asked = ", ".join(self._places)
        if self.is_seen:
            return (f"Code that asks for a GPU ({asked}) is told of {self._device_name}.",) if asked else ()
        if not asked:
            return ("Tensors say here that they lie on the CPU: what runs only where they lie on a GPU is left out.",)
        return (f"torch.cuda.is_available() is asked for and false here ({asked}): what a GPU alone runs is left out.",)
