"""Verify a patched config: load it back and compare every effective value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.children import run_child, stop_after
from memplan.configs.evaluation.loading import load_patched, unsteady_keys
from memplan.configs.keys import contains, differences, get, with_value
from memplan.configs.packages.messages import PackageAnswer, PackageRefusal, PackageRequest
from memplan.errors import ConfigError, PatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan.configs.documents import Document

OWN_READER = "memplan's own reader"
_PACKAGE_TIMEOUT_S = 60.0
_FILE_PLACEHOLDER = re.compile(r"\{\{\s*file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What reading a patched config back has shown.

    Args:
        loaders: what read it, and what they could not judge.
        following: keys whose values the config computes from those that change.
        values: the patched config's values.
    """

    loaders: str
    following: tuple[str, ...]
    values: Mapping[str, Any]


def verify(
    path: Path, texts: Mapping[str, str], expected: Mapping[str, Any], *, document: Document, packages: Sequence[str]
) -> Verification:
    """Load a patched config as if its files were in place, and compare all its values.

    Args:
        path: where the config will be.
        texts: absolute path -> whole patched text, for each file that changes.
        expected: what it must evaluate to; what a config that is run computes from changed values may follow them.
        document: the user's config as it is.
        packages: the ecosystem's own, which check too where they are installed and can load the config, and only one
            file of it changes.

    Raises:
        PatchError: it does not load, also by a package that loads the file as it is, or another value than the intended
            ones differs.
    """
    try:
        loaded = load_patched(document, path, texts)
    except ConfigError as error:
        raise PatchError(f"the patched config would not load: {error.problem}", where=str(document.path)) from error
    following = _following(expected, loaded.values, document) if path == document.path else ()
    expected = _with_values_of(loaded.values, following, expected)
    unsteady = _compare(expected, loaded.values, document)
    is_alone = not any(Path(each).suffix == path.suffix and each != str(path) for each in texts)
    over = tuple(str(each) for each in loaded.laid_over)
    requests = (PackageRequest(package=each, path=str(path), text=texts[str(path)], over=over) for each in packages)
    proofs = [_proof(each, expected, document) for each in (requests if is_alone else ())]
    loaders = " and ".join(each for each in proofs if each is not None) or OWN_READER
    if unsteady:
        loaders = f"{loaders}, but for {', '.join(unsteady)}, new at every reading"
    return Verification(loaders=loaders, following=following, values=loaded.values)


def _following(expected: Mapping[str, Any], loaded: Mapping[str, Any], document: Document) -> tuple[str, ...]:
    """Return the keys at which a config that is run computes another value than before, though nobody assigns them.

    One that changes just as an assigned value does is no such key: it shares what may have been meant for one alone.
    """
    differing = [each for each in differences(expected, loaded) if contains(loaded, each)]
    if document.language.load is not None or not differing:
        return ()
    before, unsteady = document.values, unsteady_keys(document)
    assigned = [*differences(before, expected)]
    shared = [(get(before, each), get(expected, each)) for each in assigned]
    return tuple(
        each
        for each in differing
        if each not in assigned and each not in unsteady and (get(before, each), get(loaded, each)) not in shared
    )


def _with_values_of(loaded: Mapping[str, Any], keys: Iterable[str], values: Mapping[str, Any]) -> Mapping[str, Any]:
    for each in keys:
        values = with_value(values, each, get(loaded, each))
    return values


def _proof(request: PackageRequest, expected: Mapping[str, Any], document: Document) -> str | None:
    """Compare a package's reading of a config with the expected values; return its name, or None where it has none."""
    answer = _loaded_by(request)
    if answer is None:
        return None
    if isinstance(answer, PackageRefusal):
        return _without(answer, document.path)
    _compare(expected, answer.values, document)
    if answer.unjudged:
        return f"{answer.loader}, and {OWN_READER} for {', '.join(answer.unjudged)}"
    return answer.loader


def _without(refusal: PackageRefusal, source: Path) -> str:
    """Note that only memplan's reader verified a patch whose original the package refuses; else refuse the patch."""
    if not refusal.of_original:
        raise PatchError(
            f"{refusal.loader} would not load the patched config: {refusal.problem}",
            where=str(source),
            hint="change this config by hand",
        )
    return f"{OWN_READER}, as {refusal.loader} does not load the file as it is: {refusal.problem}"


def _compare(expected: Mapping[str, Any], loaded: Mapping[str, Any], document: Document) -> tuple[str, ...]:
    """Refuse any difference but those that every reading of the config as it is makes, too; return these."""
    differing = tuple(differences(expected, loaded))
    unsteady = unsteady_keys(document) if differing else frozenset()
    difference = next((each for each in differing if each not in unsteady), None)
    if difference is None:
        return differing
    found, intended = get(loaded, difference), get(expected, difference)
    if isinstance(intended, str) and found == f"{intended}\n":
        raise PatchError(
            f"{difference} is a block of text that the file ends in without a newline",
            where=str(document.path),
            hint="end the file with a newline, or write |- instead of | to keep the text without one",
        )
    raise PatchError(
        f"the patch would set {difference} to {found!r} where {intended!r} is intended",
        where=str(document.path),
        hint="change this config by hand",
    )


def _loaded_by(request: PackageRequest) -> PackageAnswer | PackageRefusal | None:
    """Return a package's reading of a text; None where it is missing or cannot load this config by itself."""
    if find_spec(request.package) is None or _FILE_PLACEHOLDER.search(request.text):
        return None
    watch = stop_after(_PACKAGE_TIMEOUT_S, "not loaded")
    ending = run_child("memplan.configs.packages.judgement", request, watch=watch)
    return next((each for each in ending.messages if isinstance(each, PackageAnswer | PackageRefusal)), None)
