"""What both generations of OpenMMLab's configs share: Python files that inherit, and options of the train script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.layout.child_file import cfg_options, python_child_form
from memplan.configs.user_config import PatchStyle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.assignments import Assignment, ChildForm
    from memplan.configs.documents import Document


class OpenMMLabFiles(Ecosystem):
    """Python configs that mmengine's ``Config`` loads, those of mmcv's runners included."""

    loader_packages = ("mmengine",)
    styles = (PatchStyle.CHILD, PatchStyle.IN_PLACE)

    def child_form(self, document: Document) -> ChildForm | None:
        """Name the parent in ``_base_``, from a file beside it."""
        return python_child_form(document)

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return options of the train script; older repositories call them ``--options``."""
        return cfg_options(assignments)
