"""Configs of no known ecosystem: plain YAML, JSON, TOML or Python; knobs under unambiguous names, or as declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.ecosystems.usual_names import STEP_LENGTHS, counts_iterations, unmistakable_keys
from memplan.configs.keys import get, is_count, is_outside_training, keys_named
from memplan.configs.user_config import KnobName

if TYPE_CHECKING:
    from memplan.configs.assignments import KnobKeys
    from memplan.configs.documents import Document
    from memplan.configs.languages.syntaxes import Syntax


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
        """Name the lengths that look as if they followed the batch: what they count is for the user to declare."""
        known = {key for name in (KnobName.ITERATIONS, KnobName.OPTIMIZER_STEPS) for key in keys.get(name, ())}
        named = keys_named(document.values, lambda name: name in STEP_LENGTHS or counts_iterations(name))
        found = [key for key in named if key not in known and is_count(get(document.values, key))]
        if not (unclear := [key for key in found if not is_outside_training(key)]):
            return ()
        alone = f"{', '.join(unclear)} {'is' if len(unclear) == 1 else 'are'} left alone"
        return (f"{alone}; where they count forward/backward passes, name them with --map iterations=KEY,KEY",)
