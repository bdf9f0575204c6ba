"""Whatever a file holds, it is read or refused in one clear line, soon, and nothing on disk changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memplan.configs import read_config
from memplan.configs.documents import MAX_CONFIG_BYTES
from memplan.errors import ConfigError
from tests.refusals import refusal

KNOBS = {"micro_batch_size": "batch_size"}
GOOD = {
    "x.yaml": "batch_size: 4\nmodel: {a: [1, 2], b: &c 'd'}\nlr: 1.0e-3  # peak\n",
    "x.json": '{"batch_size": 4, "model": {"a": [1, 2.5e-3], "b": "c\\u00e9"}}',
    "x.toml": 'batch_size = 4\n[model]\na = [1, 2]\nb = """c"""\n',
    "x.sh": "B=4\npython t.py --batch_size ${B} \\\n  --name 'a b' --c \"d\" # e\n",
}
DEEP = {"x.yaml": ("a: ", "[", "]"), "x.json": ('{"a": ', "[", "]"), "x.toml": ("a = ", "[", "]")}
LAUGHS = "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9))
MERGES = "".join(f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{', '.join(['*' + chr(97 + n)] * 9)}]}}\n" for n in range(9))


def problem_of(path: Path) -> str | None:
    """Return the one line that a file is refused with; None where it is read."""
    return refusal(lambda: read_config(path, knob_keys=KNOBS), path.parent)


@pytest.mark.parametrize("name", GOOD)
def test_a_file_cut_short_anywhere(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for end in range(1, len(GOOD[name])):
        path.write_text(GOOD[name][:end])
        problem_of(path)


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"a\0b", "binary"),
        (bytes(range(256)), "not UTF-8"),
        (b"batch_size: 4 # \xe9", "byte 0xe9 is not UTF-8"),
        (b"#" * (MAX_CONFIG_BYTES + 1), "more than any config"),
    ],
)
def test_what_is_no_text(name: str, content: bytes, part: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert part in str(problem_of(tmp_path / name))


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_byte_order_mark_does_no_harm(name: str, newline: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + GOOD[name].replace("\n", newline).encode())
    assert read_config(tmp_path / name, knob_keys=KNOBS).recipe.micro_batch_size == 4


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("depth", [300, 3000])
def test_what_is_nested_without_end(name: str, depth: int, tmp_path: Path) -> None:
    head, opening, closing = DEEP[name]
    (tmp_path / name).write_text(head + opening * depth + closing * depth + ("}" if name == "x.json" else ""))
    assert "nested too deeply" in str(problem_of(tmp_path / name))


@pytest.mark.parametrize("chain", [LAUGHS, MERGES])
def test_aliases_that_expand_without_end(chain: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(f"a: &a {{k: 1}}\n{chain}batch_size: 4\n")
    assert "its aliases expand without reason" in str(problem_of(tmp_path / "x.yaml"))


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {<<: *a}\n"])
def test_aliases_that_contain_themselves(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(f"batch_size: 4\n{text}")
    assert "an alias refers to what contains it" in str(problem_of(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.yaml", "batch_size: {}\n"), ("x.json", '{{"batch_size": {}}}'), ("x.toml", "batch_size = {}\n")],
)
def test_a_number_of_five_thousand_digits(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text.format("9" * 5000))
    assert "integer string" in str(problem_of(tmp_path / name))


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "dangling.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.yaml")
    expected = {
        "folder.yaml": "folder",
        "dangling.yaml": "no such file",
        "loop.yaml": "cannot be read",
        "endless.yaml": "no regular file",
        "pipe.yaml": "no regular file",
    }
    for name, part in expected.items():
        with pytest.raises(ConfigError, match=part):
            read_config(tmp_path / name, knob_keys=KNOBS)


def test_a_folder_of_an_unknown_user_holds_no_config() -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_config(Path("~nobody-of-this-name/x.yaml"), knob_keys=KNOBS)


def test_a_link_to_a_config_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(GOOD["x.yaml"])
    (tmp_path / "x.yaml").symlink_to("real.yaml")
    assert problem_of(tmp_path / "x.yaml") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads anything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(GOOD["x.yaml"])
    (tmp_path / "x.yaml").chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        read_config(tmp_path / "x.yaml", knob_keys=KNOBS)


def test_tags_are_never_constructed(tmp_path: Path) -> None:
    flag = tmp_path / "made"
    (tmp_path / "x.yaml").write_text(f"batch_size: 4\na: !!python/object/apply:os.mkdir ['{flag}']\n")
    assert problem_of(tmp_path / "x.yaml") is None
    assert not flag.exists()


def test_a_long_value_is_cut_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(f"batch_size: {'x' * 5000}\n")
    assert "must be a whole number" in str(problem_of(tmp_path / "x.yaml"))
