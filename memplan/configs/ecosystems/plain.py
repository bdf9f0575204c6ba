"""Configs of no known ecosystem: plain YAML, JSON, TOML or Python; knobs under unambiguous names, or as declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.ecosystems.usual_names import is_length, listed, remark_on_lengths, unmistakable_keys
from memplan.configs.keys import get, keys_named
from memplan.configs.user_config import KnobName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.configs.assignments import KnobKeys
    from memplan.configs.documents import Document
    from memplan.configs.languages.syntaxes import Syntax

_FLOORS = ("min_lr", "eta_min", "warmup_lr")


class Plain(Ecosystem):
    """A config whose knobs go by their usual names, or are declared: by ``--map``, ``memplan.knobs``, the project."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self.name = f"plain-{syntax.name.lower()}"

    def recognises(self, document: Document) -> bool:
        """Recognise every config of the language."""
        return document.syntax is self._syntax

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys that cannot mean anything else; the user declares the others."""
        return {name: (key,) for name, key in unmistakable_keys(document.values).items()}

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Name what looks as if it followed the batch or the learning rate: that is for the user to declare."""
        return (*remark_on_lengths(document.values, keys, is_length), *_remarks_on_floors(document, keys))


def _remarks_on_floors(document: Document, keys: KnobKeys) -> Iterator[str]:
    """Name the absolute floors of a rate that is known, which are left alone unless they are declared."""
    known = keys.get(KnobName.MIN_LEARNING_RATE, ())
    named = (
        keys_named(document.values, lambda name: name.lower() in _FLOORS) if keys.get(KnobName.LEARNING_RATE) else ()
    )
    floors = [each for each in named if each not in known and isinstance(get(document.values, each), float)]
    if found := [each for each in floors if get(document.values, each) > 0]:
        yield f"{listed(found)} left alone: --map min_learning_rate={','.join(found)} has it follow the learning rate"
