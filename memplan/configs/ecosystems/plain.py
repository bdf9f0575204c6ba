"""Configs of no known ecosystem: plain YAML, JSON, TOML or Python; knobs under unambiguous names, or as declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.ecosystems.usual_names import (
    remark_on_accumulation,
    remark_on_lengths,
    remark_on_precisions,
    remark_on_rates,
    unmistakable_keys,
    unmistakable_loader_keys,
)

if TYPE_CHECKING:
    from memplan.configs.documents import Document
    from memplan.configs.languages.registry import Language
    from memplan.configs.user_config import KnobKeys


class Plain(Ecosystem):
    """A config whose knobs go by their usual names, or are declared: by ``--map``, ``memplan.knobs``, the project."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self.name = f"plain-{language.name.lower()}"

    def recognises(self, document: Document) -> bool:
        """Recognise every config of the language."""
        return document.language is self._language

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys that cannot mean anything else; the user declares the others."""
        return {name: (key,) for name, key in unmistakable_keys(document.values).items()}

    def all_keys(self, document: Document) -> KnobKeys:
        """Return the keys of the knobs, and those of the data loader's settings that cannot mean anything else."""
        return {**unmistakable_loader_keys(document.values), **super().all_keys(document)}

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Name what looks like precision or accumulation, or as if it followed batch or rate; the user declares it."""
        values = document.values
        lengths, rates = remark_on_lengths(values, keys), remark_on_rates(values, keys)
        return (*remark_on_precisions(values, keys), *remark_on_accumulation(values, keys), *lengths, *rates)
