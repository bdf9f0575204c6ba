"""What the variables of a launch script stand for, held against what a shell gives the program."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from memplan.configs import read_config
from memplan.configs.languages.shell_source import load_shell, locate_in_shell
from memplan.errors import ConfigError
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path

BASH = shutil.which("bash") or "no bash"
COMMAND = "python t.py --lr 0.1 --batch_size "
SAID = (
    "B=4; {command}$B",
    "A=1 B=4\n{command}$B",
    "export A=1 B=4\n{command}$B",
    "declare -i B=4\n{command}$B",
    "readonly B='4'\n{command}$B",
    ": ${{B:=4}}\n{command}$B",
    "{command}${{B:=4}}",
    "{command}${{B-4}}",
    "cat <<EOF\nB=9\nEOF\n{command}${{B:-4}}",
    "cat <<'EOF' > y\nB=9\nEOF\nB=4\n{command}$B",
    'echo "\nB=9\n"\n{command}${{B:-4}}',
    'echo "B=9"; B=4\n{command}$B',
    "ARGS=(--x ')' # )\n  --batch_size 4)\npython t.py --lr 0.1 \"${{ARGS[@]}}\"",
    "ARGS=(--batch_size 4 --lr 0.1)\npython t.py ${{ARGS[@]}}",
    '{command}4 "$@"',
    "f() {{ :; }}  # (\nA=(1 2)\ncase x in y) : ;; esac\nB=4\n{command}$B",
    '{command}4 || "$@"',
    "{command}4 $@ --x $(date +$(echo %F)) --y 1",
)
NOT_SAID = (
    "B=4 {command}$B",
    "B=8\nif true; then B=4; fi\n{command}$B",
    'B=8\n[ -n "$B" ] && B=4\n{command}$B',
    "if true; then B=4; fi\n{command}${{B:-8}}",
    "B=2\n((B *= 2))\n{command}$B",
    "B=3\n((++B))\n{command}$B",
    "B=4\nB+=1\n{command}$B",
    "B=4\nunset B\n{command}${{B:-5}}",
    "B=8\nread B <<< 4\n{command}$B",
    "B=8\nprintf -v B 4\n{command}$B",
    "B=8\nlet B=4\n{command}$B",
    "for B in 4 8; do {command}$B; done",
    "B=4\nf() {{ B=8; }}\nf\n{command}$B",
    'ARGS="--batch_size 4"\nARGS+=" --batch_size 8"\npython t.py --lr 1 $ARGS',
    "ARGS=(--batch_size 4)\nARGS+=(--batch_size 8)\npython t.py --lr 1 ${{ARGS[@]}}",
    "B=(4 8)\n{command}$B",
    "{command}$1",
    "( B=4 )\n{command}$B",
    "B=8\neval 'B=4'\n{command}$B",
    '[ -n "$X" ] && B=4\n{command}$B',
    "if false; then B=4; fi\n{command}$B",
    "{command}$B\nB=4",
    "{command}$((B + 2))\nB=2",
    "{command}$B\nB=$((A + 2))\nA=2",
)


@pytest.fixture(autouse=True)
def an_environment_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("B", "ARGS"):
        monkeypatch.delenv(name, raising=False)


def program_gets(folder: Path, text: str) -> list[str]:
    """Run a script with a recorder of words in the program's place, and return the words it got first."""
    (folder / "python").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" ---- >> {folder}/said\n')
    (folder / "python").chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    subprocess.run([BASH, "-c", text], env=environment, cwd=folder, check=False, capture_output=True)
    return (folder / "said").read_text().split("----")[0].split("\n")


@pytest.mark.parametrize("script", SAID)
@pytest.mark.skipif(BASH == "no bash", reason="there is no bash")
def test_a_variable_is_what_the_shell_makes_of_it(tmp_path: Path, script: str) -> None:
    text = script.format(command=COMMAND)
    assert load_shell(text, where="x")["batch_size"] == 4
    words = program_gets(tmp_path, text)
    assert words[words.index("--batch_size") + 1] == "4"


@pytest.mark.parametrize("script", SAID)
def test_its_value_is_written_in_one_place(script: str) -> None:
    text = script.format(command=COMMAND)
    place = locate_in_shell(text, "batch_size")
    assert place is not None
    assert place.obstacle is None
    assert text[place.span.start : place.span.end].strip("'") == "4"


@pytest.mark.parametrize("script", NOT_SAID)
def test_what_only_running_the_script_would_tell_is_not_guessed(tmp_path: Path, script: str) -> None:
    with pytest.raises(ConfigError):
        config_of(tmp_path, script.format(command=COMMAND), name="x.sh")


def test_a_refusal_names_the_lines_that_only_running_the_script_would_tell_apart(tmp_path: Path) -> None:
    lines = ("if [ $1 ]; then", "  LR=0.1", "else", "  LR=0.2", "fi", 'RATE="$LR"')
    (tmp_path / "x.sh").write_text("\n".join([*lines, "python t.py --batch_size 4 --lr $RATE"]))
    with pytest.raises(
        ConfigError, match=r"x\.sh:7: lr='\$RATE' is given its value at lines 2, 4, .*condition"
    ) as caught:
        read_config(tmp_path / "x.sh")
    assert caught.value.hint == "write the number in place of $RATE"


def test_of_many_such_lines_the_first_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at lines 2, 3, 4 and more, in a function"):
        config_of(tmp_path, "set_it() {\n" + "  B=4\n" * 9 + "}\npython t.py --batch_size $B --lr 1", name="x.sh")
