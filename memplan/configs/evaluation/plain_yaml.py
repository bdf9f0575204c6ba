"""Child process that reads a file with PyYAML, for programs that do no more with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from memplan import children
from memplan.configs.evaluation.judgement import Reading, judged_by
from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.languages.yaml_source import load_yaml

if TYPE_CHECKING:
    from memplan.configs.documents import SourceFile


def _read(files: tuple[SourceFile, ...]) -> Reading:
    text = files[-1].text
    own = as_plain(load_yaml(text, where=files[-1].path.name), [])
    return Reading(own=own, packages=as_plain(yaml.safe_load(text), []))


answer = judged_by("PyYAML", _read)


if __name__ == "__main__":
    children.serve(answer)
