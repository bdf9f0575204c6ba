"""Apply a patch on disk, or undo it: all of its files or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs.documents import digest_of
from memplan.errors import PatchError
from memplan.textfiles import folders_for, remove_empty_folders, write_files_together, write_text_atomically

if TYPE_CHECKING:
    from memplan.patches import ConfigPatch, FilePatch


def apply_patch(patch: ConfigPatch) -> None:
    """Write a patch to disk, every file of it or none.

    Raises:
        PatchError: a file changed since the patch was planned, or holds the patch already.
        OutputError: a file cannot be written.
    """
    if not patch.files and patch.changes:
        line = patch.override_line
        raise PatchError("the patch changes no file", hint=line and f"add to the training command: {line}")
    found = {each.path: digest_of(Path(each.path)) for each in patch.files}
    if patch.files and all(found[each.path] == each.patched_sha256 for each in patch.files):
        raise PatchError("the patch is applied already", where=patch.files[0].path, hint="--undo takes it back")
    for each in patch.files:
        require_unchanged(Path(each.path), each.original_sha256)
    with folders_for([Path(each.path) for each in patch.files]):
        write_files_together({Path(each.path).resolve(): each.patched_text for each in patch.files})


def deliver_patch(patch: ConfigPatch | None, *, output: str | Path | None, apply: bool) -> ConfigPatch | None:
    """Write a patch to a file and apply it; return it, or None where no file would change.

    Args:
        patch: the patch; None where there is none.
        output: file to write its diff to; None for no file.
        apply: whether to apply it.

    Raises:
        PatchError: as for :func:`apply_patch`.
        OutputError: a file cannot be written.
    """
    if patch is None or not patch.files:
        return None
    if output is not None:
        write_text_atomically(Path(output), patch.diff)
    if apply:
        apply_patch(patch)
    return patch


def undo_patch(patch: ConfigPatch) -> None:
    """Put every file back as it was before the patch, byte for byte; files and folders that it created are removed.

    A folder stays where something else has been put into it.

    Raises:
        PatchError: the patch is not applied, or a file changed since.
        OutputError: a file cannot be written.
    """
    found = {each.path: digest_of(Path(each.path)) for each in patch.files}
    if all(found[each.path] == each.original_sha256 for each in patch.files):
        where = patch.files[0].path if patch.files else None
        raise PatchError("the patch is not applied", where=where, hint="there is nothing to undo")
    for each in patch.files:
        if found[each.path] != each.patched_sha256:
            raise PatchError(
                f"the file {_what_happened(each, found[each.path])} since the patch was applied",
                where=each.path,
                hint="take the change back by hand, so that nothing of yours is lost",
            )
    write_files_together({Path(each.path).resolve(): each.original_text for each in patch.files})
    for each in patch.files:
        if each.new_folder is not None:
            remove_empty_folders(Path(each.path).parent, outermost=Path(each.new_folder))


def require_unchanged(target: Path, sha256: str | None) -> None:
    """Check that a file is as it was when a patch was planned.

    Args:
        target: the file.
        sha256: digest of its bytes then; None where there was no file.

    Raises:
        PatchError: it is not.
    """
    now = digest_of(target)
    if now == sha256:
        return
    what = "was removed" if now is None else "was created" if sha256 is None else "was changed"
    raise PatchError(f"the file {what} since the patch was planned", where=str(target), hint="plan again")


def _what_happened(file: FilePatch, digest: str | None) -> str:
    if digest is None:
        return "was removed"
    return "was put back" if digest == file.original_sha256 else "was changed"
