"""Unified diffs, given to git itself."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.configs.writing.diffs import unified_diff

if TYPE_CHECKING:
    import pytest

ROWS = st.lists(st.sampled_from(["a", "b", "lr = 1\r", "", " x\x0c", "é\u2028"]), min_size=1, max_size=6)
TEXTS = st.builds(lambda rows, end: "\n".join(rows) + end, ROWS, st.sampled_from(["", "\n"]))


def test_a_missing_final_newline_is_marked() -> None:
    assert unified_diff("a\nb", "a\nc", path="x").endswith(
        "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )


def test_a_new_file_comes_from_nothing() -> None:
    assert unified_diff(None, "a\n", path="d/x").startswith("--- /dev/null\n+++ b/d/x\n@@ -0,0 +1 @@\n+a\n")


def test_nothing_changed_is_no_diff() -> None:
    assert unified_diff("a\n", "a\n", path="x") == ""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, TEXTS, st.booleans())
def test_git_turns_the_old_text_into_the_new_one(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str, is_new: bool
) -> None:
    folder = tmp_path_factory.mktemp("checkout")
    if not is_new:
        (folder / "x.py").write_bytes(before.encode())
    diff = unified_diff(None if is_new else before, after, path="x.py")
    if not diff:
        return
    (folder / "change.diff").write_bytes(diff.encode())
    command = ["git", "apply", "--whitespace=nowarn", "change.diff"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    assert (folder / "x.py").read_bytes() == after.encode()
