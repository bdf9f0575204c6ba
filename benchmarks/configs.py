"""Patch public configs and hold the result against their own loaders: how many can be patched, and is any wrong?

    python benchmarks/configs.py --results FILE NAME=FOLDER [NAME=FOLDER ...]
        [--suffix .py] [--within NAME] [--beside FILE] [--set NAME=VALUE] [--every N] [--processes]
    python benchmarks/configs.py --results FILE

Every config of the folders (copied first) is read, its micro-batch and learning rate are doubled, its lengths halved
and its precision switched; the diff is applied with ``git apply`` and, from the start again, with ``patch``. Before and
after, the ecosystem's own loader loads it, and all effective values are compared: whatever differs must be one of the
values below, by exactly the factor below. What has been done is kept in FILE, so a run can be interrupted and resumed;
without folders it only prints the table. ``--processes`` reads each config in a child process, as memplan itself does;
without it the same code runs in this process, which is many times faster.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import config_loaders

from memplan.children import ChildEnding, run_child
from memplan.configs import RecipeChange, UserConfig, expressible, plan_patch, read_config
from memplan.configs.evaluation import loading
from memplan.configs.keys import differences, get
from memplan.configs.languages.python_style import PythonStyle, style_of
from memplan.configs.writing import verification
from memplan.errors import MemplanError
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memplan.patches import ConfigPatch

SUFFIXES = (".py", ".yaml", ".yml", ".json", ".sh", ".sbatch", ".slurm")
BATCH_KEYS = (
    "train_dataloader.batch_size",
    "data.samples_per_gpu",
    "data.imgs_per_gpu",
    "data.train_dataloader.samples_per_gpu",
    "per_device_train_batch_size",
    "micro_batch_size",
    "SOLVER.IMS_PER_BATCH",
    "dataloader.train.total_batch_size",
)
LoadedFile = tuple[str, dict[str, Any]]  # its format, and its effective values
VERIFIED, REFUSED, UNREAD, WRONG = "verified", "refused", "not read", "WRONG"
_SAYS_NO_BATCH = (
    "no micro-batch size",
    "sets no batch size",
    "set by the training arguments",
    "is empty",
    "not hold keys",
    "no training command",
    "several training commands",
    "more than any config",
    "not laid over one another",
    "do not go with",
)
NO_TRAINING, UNLOADABLE = "sets no batch size", "not loaded by its own loader"
HF = {
    "double": r"per_device_train_batch_size|micro_batch_size|batch_size|train_batch_size",
    "rate": r"learning_rate|min_lr|cosine_min_lr",
    "halve": r"(max|warmup|save|eval|logging)_steps",
    "precision": r"bf16|fp16|tf32|pure_bf16|float16|bfloat16|accelerate_launch\.mixed_precision",
}
INTENDED: dict[str, dict[str, str]] = {
    "mmengine": {
        "double": r"train_dataloader\.batch_size",
        "rate": r"optim_wrapper\.optimizer\.lr|param_scheduler(\.\d+)?\.eta_m(in|ax)",
        "halve": r"train_cfg\.(max_iters|val_interval|val_begin)|default_hooks\.checkpoint\.interval|"
        r"param_scheduler(\.\d+)?\.(begin|end|milestones|step_size|T_max|total_iters|total_steps|periods|T_0)(\.\d+)?",
        "precision": r"optim_wrapper\.(type|dtype|loss_scale)",
    },
    "openmmlab-0.x": {
        "double": r"data\.(train_dataloader\.)?(samples|imgs)_per_gpu",
        "rate": r"optimizer\.lr|lr_config\.min_lr",
        "halve": r"runner\.max_iters|total_iters|(lr|momentum)_config\.(warmup_iters|step|periods|total_steps)(\.\d+)?|"
        r"checkpoint_config\.interval|evaluation\.(interval|start)",
        "precision": r"optimizer_config(\.(type|loss_scale))?|fp16(\.loss_scale)?",
    },
    "detectron2": {
        "double": r"SOLVER\.IMS_PER_BATCH",
        "rate": r"SOLVER\.BASE_LR(_END)?",
        "halve": r"SOLVER\.(MAX_ITER|STEPS(\.\d+)?|WARMUP_ITERS|CHECKPOINT_PERIOD)|TEST\.EVAL_PERIOD",
        "precision": r"SOLVER\.AMP\.ENABLED",
    },
    "detectron2-lazy": {
        "double": r"dataloader\.train\.(total_)?batch_size",
        "rate": r"optimizer\.lr",
        "halve": r"train\.(max_iter|eval_period|checkpointer\.period)",
        "precision": r"train\.amp\.enabled",
    },
    "lightning-hydra": {
        "double": r"(.+\.)?batch_size",
        "rate": r"(.+\.)?(lr|learning_rate|max_lr|eta_min|min_lr)",
        "halve": r"trainer\.(max_steps|min_steps|val_check_interval|limit_train_batches)",
        "precision": r"trainer\.precision",
    },
    "deepspeed": {
        "double": r"train_(micro_)?batch_size(_per_gpu)?",
        "rate": r"optimizer\.params\.lr|scheduler\.params\.warmup_max_lr",
        "halve": r"scheduler\.params\.(total|warmup)_num_steps",
        "precision": r"(fp16|bf16)(\.enabled)?",
    },
    "llama-factory": HF,
    "axolotl": HF,
    "huggingface": HF,
    "accelerate": {"precision": r"mixed_precision"},
    "launch-script": {
        "double": r"batch_size|train_batch_size|micro_batch_size|per_device_train_batch_size",
        "rate": r"lr|learning_rate|min_lr|warmup_lr",
        "halve": r"(max(_train)?|(num_|lr_)?warmup|save|checkpointing|eval|validation|logging)_steps",
        "precision": r"precision|(accelerate_launch\.)?mixed_precision|amp|use_amp|fp16|amp_dtype",
    },
}


def doubled(config: UserConfig) -> RecipeChange:
    """Twice the micro-batch and rate, half the lengths, the first other precision that the config can express."""
    recipe = config.recipe
    rate = None if recipe.learning_rate is None else recipe.learning_rate * 2
    others = [Precision.FP16, Precision.BF16] if recipe.precision is Precision.FP32 else [Precision.FP32]
    wanted = [
        replace(recipe, micro_batch_size=recipe.micro_batch_size * 2, learning_rate=rate, precision=each)
        for each in others
    ]
    recipe = next((each for each in wanted if expressible(config, each) is None), wanted[0])
    return RecipeChange(recipe=recipe, iteration_factor=Fraction(1, 2), optimizer_step_factor=Fraction(1, 2))


def faults(before: list[LoadedFile], after: list[LoadedFile]) -> list[str]:
    """Say what is not as intended between the effective values of a config, and of what it names, before and after."""
    found, seen = [], Counter[str]()
    for (format_name, old_values), (_, new_values) in zip(before, after, strict=True):
        rules = INTENDED[format_name]
        for key in differences(old_values, new_values):
            kind = next((kind for kind, pattern in rules.items() if re.fullmatch(pattern, key)), None)
            seen[str(kind)] += 1
            old, new = get(old_values, key), get(new_values, key)
            if kind is None or not _follows(kind, old, new):
                found.append(f"{key}: {old!r} -> {new!r}")
    return found + [f"no {kind} value differs" for kind in ("double", "precision") if not seen[kind]]


def _follows(kind: str, old: Any, new: Any) -> bool:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(_follows(kind, one, two) for one, two in zip(old, new, strict=True))
    if kind == "precision":
        return True
    try:
        old, new = float(old), float(new)
    except (TypeError, ValueError):
        return False
    if kind == "halve":
        return new == max(1, round(Fraction(old) / 2))
    return abs(new - 2 * old) <= 1e-9 * abs(new)


def outcome_of(path: Path, *beside_it: Path) -> tuple[str, str, str]:
    """Patch one config, with the files named beside it; return how that ended, why, and what kind of config it is."""
    try:
        config = read_config(path, *beside_it)
    except MemplanError as error:
        return _unread(path, error)
    kind = config.format_name
    if kind not in INTENDED:
        return NO_TRAINING, "", kind
    beside = [(each.path, each.format_name) for each in config.companions if not each.within]
    try:
        before = _loaded([(path, kind), *beside])
    except Exception as error:  # noqa: BLE001 - whatever the ecosystem raises is its verdict on the config
        return UNLOADABLE, f"{type(error).__name__}: {error}".splitlines()[0][:150], kind
    try:
        patch = plan_patch(config, doubled(config))
    except MemplanError as error:
        return REFUSED, error.problem, kind
    for after in _applied_by_each_tool(patch, kind, beside):
        if isinstance(after, str) or (wrong := faults(before, after)):
            return WRONG, after if isinstance(after, str) else "; ".join(wrong)[:300], kind
    return VERIFIED, "", kind


def _unread(path: Path, error: MemplanError) -> tuple[str, str, str]:
    """Say whether a config that memplan does not read is one for training that its own loader loads."""
    guess = {".py": "mmengine", ".json": "deepspeed"}.get(path.suffix, "huggingface")
    if path.suffix == ".py" and style_of(path.read_text(encoding="utf-8")) is PythonStyle.LAZY_CONFIG:
        guess = "detectron2-lazy"
    try:
        values = config_loaders.load(path, guess)
    except Exception as reason:  # noqa: BLE001 - whatever the ecosystem raises is its verdict on the config
        return UNLOADABLE, f"{type(reason).__name__}: {reason}".splitlines()[0][:150], ""
    has_batch = isinstance(values, dict) and any(get(values, key) for key in _batch_keys(values))
    says_none = any(each in error.problem for each in _SAYS_NO_BATCH) and not has_batch
    return (NO_TRAINING if says_none else UNREAD), error.problem, ""


def _batch_keys(values: dict[str, Any]) -> tuple[str, ...]:
    """Return where a batch size may be; mmengine's Runner refuses a config without a training loader of its own."""
    return BATCH_KEYS[:1] if "optim_wrapper" in values else BATCH_KEYS


def _loaded(files: list[tuple[Path, str]]) -> list[LoadedFile]:
    return [(format_name, config_loaders.load(path, format_name)) for path, format_name in files]


def _applied_by_each_tool(
    patch: ConfigPatch, kind: str, beside: list[tuple[Path, str]]
) -> Iterator[list[LoadedFile] | str]:
    """Yield what the ecosystem loads after each tool has applied the diff; everything is as before at the end."""
    tools = (["git", "apply", "--whitespace=nowarn", "-"], ["patch", "-p1", "-s"])
    target = Path(patch.files[0].path)
    for tool in tools:
        try:
            subprocess.run(tool, cwd=patch.root_path, input=patch.diff.encode(), check=True, capture_output=True)
            if any(Path(each.path).read_bytes() != each.patched_text.encode() for each in patch.files):
                yield f"{tool[0]} makes another text than was planned"
            yield _loaded([(target, kind), *beside])
        except subprocess.CalledProcessError as error:
            yield f"{tool[0]} refuses the diff: {error.stderr.decode()[:150]}"
        except Exception as error:  # noqa: BLE001 - a patched config that does not load is wrong, whatever is raised
            yield f"the patched config does not load: {type(error).__name__}: {error}"[:200]
        finally:
            for each in patch.files:
                if each.original_text is None:
                    Path(each.path).unlink(missing_ok=True)
                else:
                    Path(each.path).write_bytes(each.original_text.encode())


def _in_this_process(
    module: str, request: object, *, watch: Callable[[int, float], str | None] | None = None, **_: Any
) -> SimpleNamespace | ChildEnding:
    """Stand in for ``run_child``: answer a request with the same code, here; transformers' parser needs its process."""
    if getattr(request, "package", None) == "transformers":
        return run_child(module, request, watch=watch)
    messages: list[object] = []
    try:
        importlib.import_module(module).answer(request, messages.append)
    except Exception:  # noqa: BLE001 - a child would have ended without an answer
        messages.clear()
    return SimpleNamespace(messages=messages, stop_reason="it ended without an answer", return_code=1, log_tail="")


def configs_in(folder: Path, suffix: str | None, within: str | None) -> list[Path]:
    """Return the configs of a tree that a user would name: no bases; only those below folders of a name, if given."""
    suffixes = SUFFIXES if suffix is None else (suffix,)
    found = (each for each in sorted(folder.rglob("*")) if each.suffix in suffixes and each.is_file())
    own = (each for each in found if "_base_" not in each.parts and each.name != "__init__.py")
    return [each for each in own if within is None or within in each.relative_to(folder).parts]


def run(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Patch every config of a folder that has no result yet."""
    done = {(each["corpus"], each["path"]) for each in results_in(options.results)}
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(shutil.copytree(folder, Path(scratch) / "configs"))
        beside = [tree / each for each in options.beside]
        for path in configs_in(tree, options.suffix, options.within)[:: options.every]:
            shown = path.relative_to(tree).as_posix()
            if (name, shown) in done or path in beside:
                continue
            kind, reason, format_name = outcome_of(path, *beside)
            line = {"corpus": name, "path": shown, "outcome": kind, "reason": reason, "format": format_name}
            with options.results.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")


def results_in(path: Path) -> list[dict[str, str]]:
    """Return the results that earlier runs left in a file; none where there is no file."""
    return [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def show(results: list[dict[str, str]]) -> None:
    """Print the counts of each corpus, and every reason for what was not patched."""
    kinds = (VERIFIED, REFUSED, UNREAD, WRONG, UNLOADABLE, NO_TRAINING)
    print("| corpus | configs | " + " | ".join(kinds) + " | patched |")
    print("|---|" + "---:|" * (len(kinds) + 2))
    for corpus in [*dict.fromkeys(each["corpus"] for each in results), "all"]:
        own = [each for each in results if corpus in (each["corpus"], "all")]
        counts = Counter(each["outcome"] for each in own)
        base = sum(counts[kind] for kind in (VERIFIED, REFUSED, UNREAD, WRONG))
        share = f"{100 * counts[VERIFIED] / base:.1f} %" if base else "-"
        print(f"| {corpus} | {len(own)} | " + " | ".join(str(counts[kind]) for kind in kinds) + f" | {share} |")
    reasons = Counter((each["corpus"], each["outcome"], each["reason"]) for each in results if each["reason"])
    for (corpus, outcome, reason), count in reasons.most_common():
        print(f"{count:5d}  {corpus}, {outcome}: {reason}")


def main() -> None:
    """Run over the folders and print the counts and every reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpora", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, one for each config")
    parser.add_argument("--within", help="take only what lies below folders of this name")
    parser.add_argument("--suffix", help="take only files whose names end so")
    parser.add_argument("--beside", action="append", default=[], help="file of the tree that is named with each config")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE in the environment of launch scripts")
    parser.add_argument("--every", type=int, default=1, help="take every Nth config")
    parser.add_argument("--processes", action="store_true", help="read in child processes, as memplan does")
    options = parser.parse_args()
    if not options.processes:
        loading.run_child = _in_this_process  # type: ignore[assignment]  # the same answers, many times faster
        verification.run_child = _in_this_process  # type: ignore[assignment]  # as above
    config_loaders.SCRIPT_ENVIRONMENT.update(each.split("=", 1) for each in options.set)
    os.environ.update(config_loaders.SCRIPT_ENVIRONMENT)
    for corpus in options.corpora:
        name, _, folder = corpus.partition("=")
        run(name, Path(folder), options)
    show(results_in(options.results))


if __name__ == "__main__":
    main()
