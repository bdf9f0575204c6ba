"""Patch every config of a tree and count: read, patched, proven, refused with a reason, wrong (which must be 0).

    python benchmarks/configs.py FOLDER [--every N]

FOLDER is a tree of OpenMMLab configs, such as ``mmseg/.mim/configs`` of the mmsegmentation wheel. It is copied first.
Each leaf's micro-batch and learning rate are doubled and its precision is switched; the patched config is loaded back
and all its effective values are compared. With mmengine installed its own loader does that too.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from memplan.configs import RecipeChange, UserConfig, apply_patch, plan_patch, read_config
from memplan.configs.keys import differences
from memplan.errors import MemplanError
from memplan.recipe import Precision


def doubled(config: UserConfig) -> RecipeChange:
    """Twice the micro-batch and rate, half the passes, the other precision."""
    recipe = config.recipe
    rate = None if recipe.learning_rate is None else recipe.learning_rate * 2
    precision = Precision.FP16 if recipe.precision is Precision.FP32 else Precision.FP32
    wanted = replace(recipe, micro_batch_size=recipe.micro_batch_size * 2, learning_rate=rate, precision=precision)
    return RecipeChange(recipe=wanted, iteration_factor=Fraction(1, 2), optimizer_step_factor=Fraction(1, 2))


def unintended(config: UserConfig, patched: UserConfig, keys: list[str]) -> list[str]:
    """Keys whose effective value differs though the patch did not name them."""
    found = differences(config.values, patched.values)
    return [key for key in found if not any(f"{key}.".startswith(f"{each}.") for each in keys)]


def outcome_of(path: Path) -> tuple[str, str]:
    """Patch one config, and say how that ended."""
    try:
        config = read_config(path)
    except MemplanError as error:
        return "not read", error.problem
    try:
        patch = plan_patch(config, doubled(config))
    except MemplanError as error:
        return "refused", error.problem
    apply_patch(patch)
    patched = read_config(Path(patch.files[0].path))
    wrong = unintended(config, patched, [each.key for each in patch.changes])
    Path(patch.files[0].path).unlink()
    if wrong or patched.recipe.micro_batch_size != config.recipe.micro_batch_size * 2:
        return "wrong", f"{path.name}: {', '.join(wrong)}"
    return f"patched, proven by {patch.verified_by}", ""


def main() -> None:
    """Run over the tree and print the counts and every reason."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take every Nth config")
    options = parser.parse_args()
    counts, reasons = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(shutil.copytree(options.folder, Path(scratch) / "configs"))
        leaves = [path for path in sorted(tree.rglob("*.py")) if "_base_" not in path.parts]
        for path in leaves[:: options.every]:
            kind, reason = outcome_of(path)
            counts[kind] += 1
            if reason:
                reasons[f"{kind}: {reason}"] += 1
    for kind, count in counts.most_common():
        print(f"{count:5d}  {kind}")
    for reason, count in reasons.most_common():
        print(f"{count:5d}  {reason}")


if __name__ == "__main__":
    main()
