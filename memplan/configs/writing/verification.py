"""Verify a patched config: load it back and compare every effective value."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.children import run_child, stop_after
from memplan.configs.evaluation.loading import load_patched
from memplan.configs.keys import first_difference, get
from memplan.configs.packages.messages import PackageAnswer, PackageRefusal, PackageRequest
from memplan.errors import ConfigError, PatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.documents import Document

OWN_READER = "memplan's own reader"
_PACKAGE_TIMEOUT_S = 60.0
_FILE_PLACEHOLDER = re.compile(r"\{\{\s*file")


def verify(
    path: Path, texts: Mapping[str, str], expected: Mapping[str, Any], *, document: Document, packages: Sequence[str]
) -> str:
    """Load a patched config as if its files were in place, compare all its values, and name the loaders.

    Args:
        path: where the config will be.
        texts: absolute path -> whole patched text, for each file that changes.
        expected: what it must evaluate to.
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
    _compare(expected, loaded.values, document.path)
    is_alone = not any(Path(each).suffix == path.suffix and each != str(path) for each in texts)
    over = tuple(str(each) for each in loaded.laid_over)
    requests = (PackageRequest(package=each, path=str(path), text=texts[str(path)], over=over) for each in packages)
    proofs = [_proof(each, expected, document.path) for each in (requests if is_alone else ())]
    return " and ".join(each for each in proofs if each is not None) or OWN_READER


def _proof(request: PackageRequest, expected: Mapping[str, Any], source: Path) -> str | None:
    """Compare a package's reading of a config with the expected values; return its name, or None where it has none."""
    answer = _loaded_by(request)
    if answer is None:
        return None
    if isinstance(answer, PackageRefusal):
        return _without(answer, source)
    _compare(expected, answer.values, source)
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


def _compare(expected: Mapping[str, Any], loaded: Mapping[str, Any], source: Path) -> None:
    difference = first_difference(expected, loaded)
    if difference is not None:
        found, intended = get(loaded, difference), get(expected, difference)
        if isinstance(intended, str) and found == f"{intended}\n":
            raise PatchError(
                f"{difference} is a block of text that the file ends in without a newline",
                where=str(source),
                hint="end the file with a newline, or write |- instead of | to keep the text without one",
            )
        raise PatchError(
            f"the patch would set {difference} to {found!r} where {intended!r} is intended",
            where=str(source),
            hint="change this config by hand",
        )


def _loaded_by(request: PackageRequest) -> PackageAnswer | PackageRefusal | None:
    """Return a package's reading of a text; None where it is missing or cannot load this config by itself."""
    if find_spec(request.package) is None or _FILE_PLACEHOLDER.search(request.text):
        return None
    watch = stop_after(_PACKAGE_TIMEOUT_S, "not loaded")
    ending = run_child("memplan.configs.packages.judgement", request, watch=watch)
    return next((each for each in ending.messages if isinstance(each, PackageAnswer | PackageRefusal)), None)
