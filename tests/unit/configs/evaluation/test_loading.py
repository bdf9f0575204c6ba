"""Loading configs: inheritance as mmcv does it, and every way in which a config can be bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.configs.evaluation import loading
from memplan.configs.evaluation.loading import load_document, unsteady_keys, without_unsteady
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8", newline="")


def values_of(folder: Path, **files: str) -> dict[str, object]:
    write(folder, **files)
    return load_document(folder / "leaf.py").values


def problem_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_document(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path.parent))
    return message


def test_dicts_merge_key_by_key_and_lists_are_replaced(tmp_path: Path) -> None:
    base = "data = dict(a=1, pipe=[1, 2], deep=dict(x=1, y=2))\nkept = (1, 2)"
    found = values_of(tmp_path, base=base, leaf="_base_ = './base.py'\ndata = dict(pipe=[3], deep=dict(y=5))")
    assert found == {"data": {"a": 1, "pipe": [3], "deep": {"x": 1, "y": 5}}, "kept": (1, 2)}


def test_delete_drops_the_inherited_dict(tmp_path: Path) -> None:
    found = values_of(tmp_path, base="a = dict(x=1, y=2)", leaf="_base_ = ['base.py']\na = dict(_delete_=True, z=3)")
    assert found == {"a": {"z": 3}}


def test_placeholders_name_the_file_that_holds_them(tmp_path: Path) -> None:
    base = "name = '{{ fileBasenameNoExtension }}'\nlr = 0.5\nd = dict(x=[1])"
    leaf = (
        "_base_ = ['base.py']\nown = '{{fileBasename}}{{ fileExtname }}'\nfolder = '{{ fileDirname }}'\n"
        "half = {{_base_.lr}}\npart = dict(x={{ _base_.d.x }})\nalso = _base_.d.x"
    )
    found = values_of(tmp_path, base=base, leaf=leaf)
    assert (found["name"], found["own"], found["folder"]) == ("base", "leaf.py.py", str(tmp_path))
    assert (found["half"], found["part"], found["also"]) == (0.5, {"x": [1]}, [1])


def test_environment_variables_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLAN_TEST_SIZE", "8")
    leaf = "size = {{$MEMPLAN_TEST_SIZE:4}}\nother = {{'$MEMPLAN_TEST_UNSET:2'}}"
    assert values_of(tmp_path, leaf=leaf) == {"size": 8, "other": 2}


def test_a_thread_of_the_config_does_not_hold_up_its_reading(tmp_path: Path) -> None:
    leaf = "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\na = 1"
    assert values_of(tmp_path, leaf=leaf) == {"a": 1}


def test_several_bases_are_joined(tmp_path: Path) -> None:
    found = values_of(tmp_path, one="a = dict(x=1)", two="b = 2", leaf="_base_ = ['one.py', 'two.py']\na = dict(y=3)")
    assert found == {"a": {"x": 1, "y": 3}, "b": 2}


def test_what_a_config_imports_and_defines_is_not_a_value(tmp_path: Path) -> None:
    found = values_of(
        tmp_path, leaf="import os\nfrom math import pi\ndef f(): pass\nclass C: pass\n__x = 1\na = pi > 3"
    )
    assert found == {"pi": pytest.approx(3.14159, abs=1e-5), "a": True}


def test_objects_are_passed_on_as_text_with_a_note(tmp_path: Path) -> None:
    write(tmp_path, leaf="a = dict(b=[1, {2}])")
    document = load_document(tmp_path / "leaf.py")
    assert document.values == {"a": {"b": [1, "{2}"]}}
    assert "a.b.1 is a set" in document.notes[0]


def test_a_custom_import_is_not_run(tmp_path: Path) -> None:
    leaf = "custom_imports = dict(imports=['no_such_module'], allow_failed_imports=False)"
    assert "custom_imports" in values_of(tmp_path, leaf=leaf)


def test_what_a_config_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    assert values_of(tmp_path, leaf="print('x' * 100000)\na = 1") == {"a": 1}


@pytest.mark.parametrize(
    ("leaf", "place", "part"),
    [
        ("a = 1\nb = (2\n", "leaf.py:2", "invalid Python: '(' was never closed: b = (2"),
        ("_base_ = ['nothing.py']", "leaf.py:1", "nothing.py does not exist"),
        ("x = 1\n_base_ = ['leaf.py']", "leaf.py:2", "inherits from itself"),
        ("_base_ = ['one.py', 'one_too.py']", "leaf.py:1", "a is set by more than one _base_ file"),
        ("_base_ = ['one.py']\na = dict(x=1)", "leaf.py", "a is a dict here but int in the base config"),
        ("_base_ = ['pkg::x.py']", "leaf.py:1", "lies in the package 'pkg', which is not installed"),
        ("_base_ = 5", "leaf.py:1", "_base_ = 5 is not a path"),
        ("a = 1\nb = 1 / 0", "leaf.py:2", "raises ZeroDivisionError: division by zero"),
        ("\nraise SystemExit(3)", "leaf.py:2", "raises SystemExit: 3"),
        ("import sys\nsys.exit()", "leaf.py:2", "raises SystemExit"),
        ("import not_a_module", "leaf.py:1", "raises ModuleNotFoundError: No module named 'not_a_module'"),
        ("import os\nos._exit(7)", "leaf.py", "exit status 7"),
        ("with read_base():\n    from .b import *", "leaf.py:2", "there is no config"),
        ("def f(): f()\nf()", "leaf.py:1", "raises RecursionError"),
        ("a = b'\\0'\nreturn 1", "leaf.py", "'return' outside function"),
    ],
)
def test_a_bad_python_config_is_one_clear_line(tmp_path: Path, leaf: str, place: str, part: str) -> None:
    write(tmp_path, leaf=leaf, one="a = 1", one_too="a = 2")
    message = problem_of(tmp_path / "leaf.py")
    assert message.startswith(f"{tmp_path}/{place}:")
    assert part in message


def test_a_circle_of_bases_is_found(tmp_path: Path) -> None:
    write(tmp_path, leaf="_base_ = 'other.py'", other="_base_ = 'leaf.py'")
    assert "other.py:1: leaf.py inherits from itself" in problem_of(tmp_path / "leaf.py")


def test_an_error_in_a_base_names_the_base(tmp_path: Path) -> None:
    write(tmp_path, leaf="_base_ = 'base.py'", base="ok = 1\nbad = ok.missing\n")
    assert "base.py:2: the config raises AttributeError" in problem_of(tmp_path / "leaf.py")


def test_a_config_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "READ_TIMEOUT_S", 1.0)
    write(tmp_path, leaf="while True: pass")
    assert "it did not load within 1 s" in problem_of(tmp_path / "leaf.py")


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("x.py", b"a = '\xe9'\n", ":1: byte 0xe9 is not UTF-8"),
        ("x.py", b"", ": the file is empty"),
        ("x.py", b"a\0b", ": the file is binary"),
        ("x.yaml", b"- 1\n- 2\n", ": the config does not hold keys and values"),
        ("x.json", b"[1]", ": the config does not hold keys and values"),
        ("x.cfg", b"a = 1", ": files ending in '.cfg' are not configs"),
        (".env", b"A=1", ": files without an ending are not configs"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, name: str, content: bytes, part: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert part in problem_of(tmp_path / name)


def test_toml_and_yaml_dates_become_text(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("a = 1979-05-27\n[b]\nc = 4\n")
    assert load_document(tmp_path / "x.toml").values["b"] == {"c": 4}


RAN = "open('ran', 'w')\n"
MAIN = "if __name__ == '__main__':\n    "


@pytest.mark.parametrize(
    "text",
    [
        f"{RAN}for _ in range(9):\n    loss_of(model).backward()\n",
        f"def main():\n    {RAN}\n\n{MAIN}main()\n",
        f"from cli import CLI\n{RAN}def main(batch_size: int = 4): ...\n{MAIN}CLI(main)\n",
        f"import cli\n{RAN}class Config:\n    batch_size = 4\n{MAIN}train(cli.parse(Config))\n",
        f"import sys\n{RAN}settings = dict(batch_size=int(sys.argv[1]))\n",
    ],
    ids=["a loop", "a main function", "a function for a package", "a class for a package", "words of a command"],
)
def test_a_training_script_is_not_run_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, leaf=text)
    assert "this is a program, not a config" in problem_of(tmp_path / "leaf.py")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("import sys\nBATCH = int(sys.argv[1])\n", '"python leaf.py ... {micro_batch_size}"'),
        ("from cli import CLI\n", '"python leaf.py ... {micro_batch_size}"'),
        ("BATCH = 64\n", '"BATCH={micro_batch_size} python leaf.py"'),
    ],
)
def test_a_script_is_to_get_its_batch_where_it_can_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, leaf=f"{head}for _ in range(9):\n    loss_of(model).backward()\n")
    assert f"memplan probe --command {line}" in problem_of(tmp_path / "leaf.py")


@pytest.mark.parametrize("shown", ["data", "yaml.dump(Data)", "yaml.dump(data)"])
def test_a_config_that_looks_at_itself_when_it_is_run_is_still_a_config(tmp_path: Path, shown: str) -> None:
    leaf = f"import yaml\nclass Data:\n    m = 2\ndata = dict(n=4)\nif __name__ == '__main__':\n    print({shown})\n"
    assert values_of(tmp_path, leaf=leaf)["data"] == {"n": 4}


def test_values_made_of_the_time_or_drawn_are_told_and_set_aside(tmp_path: Path) -> None:
    leaf = (
        "import datetime, os, time, uuid\n"
        "by_day = f'{datetime.datetime.now():%Y%m%d}'\nday = str(datetime.date.today())\n"
        "utc = datetime.datetime.now(datetime.timezone.utc).isoformat()\nmonth = time.strftime('%m')\n"
        "hour = time.localtime().tm_hour\nwritten = time.asctime()\nsecond = int(time.time())\n"
        "run = dict(name=uuid.uuid4().hex, lr=0.1)\nfixed = time.strftime('%Y', time.gmtime(0))\n"
        "year = datetime.datetime(2020, 1, 1).year"
    )
    write(tmp_path, leaf=leaf)
    document = load_document(tmp_path / "leaf.py")
    new = {"by_day", "day", "utc", "month", "hour", "written", "second", "run.name"}
    assert unsteady_keys(document) == new
    assert without_unsteady(document.values, document) == {
        **dict.fromkeys(new - {"run.name"}), "run": {"name": None, "lr": 0.1}, "fixed": "1970", "year": 2020
    }  # fmt: skip


def test_a_config_that_imports_nothing_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, base="a = 1", leaf="_base_ = ['base.py']\nb = 2")
    document = load_document(tmp_path / "leaf.py")
    monkeypatch.delattr(loading, "run_child")
    assert unsteady_keys(document) == set()
