"""How many trials and how much time a search takes, and how fast and how full its answer runs, beside other finders.

    python benchmarks/search.py --out benchmarks/search_cpu.json [--budget 768MiB] [--device cpu] [--only NAME,...]

For ten small models and one budget: memplan, PyTorch Lightning's batch-size finder (power and binsearch), accelerate's
``find_executable_batch_size`` and an exhaustive search, which tries every micro-batch from 1 until one is too large.
All run for real; needs lightning and accelerate. The others run in a process whose memory is limited to the budget
(``search_tools.py`` says how). How full their answers run is read off the exhaustive search; how fast, they are timed
by turns in one process (``search_speeds.py``). Every finished part is stored, and what is stored is not run again. With
``--device cuda:0`` the same runs on a card, capped at the budget.

The C library is set to map every block of 1 MiB and more by itself. By default it keeps some freed blocks and returns
others, and whether a step has to fault its pages in again then decides its speed: that has nothing to do with the
model, and a card's caching allocator has no such choice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_models import MODELS
from search_tools import TOOLS

import memplan
from memplan.devices.resolving import resolve_device
from memplan.probe.launcher import run_trial, trial_template
from memplan.probe.trials import TrialRequest
from memplan.progress import TrialEnded
from memplan.textfiles import write_text_atomically
from memplan.units import format_bytes, parse_bytes
from memplan.workload import WorkloadReference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memplan.children import Template
    from memplan.results import Outcome

BAND = (0.6, 0.8)
FINDER_LIMIT_S = 1200
FOLDER = Path(__file__).parent
OURS, EXHAUSTIVE, SPEEDS = "memplan", "exhaustive", "speeds"
STARTS_AT = 2  # what Lightning starts from too
HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}


class Bench:
    """One model on one device under one budget."""

    def __init__(self, model: str, device: str, budget_bytes: int, template: Template) -> None:
        self.model, self.device, self.budget_bytes, self.template = model, device, budget_bytes, template

    def tried(self, size: int) -> Outcome:
        """Run one micro-batch as memplan does."""
        request = TrialRequest(
            source=WorkloadReference(
                target=f"search_models:{self.model}", config={}, config_path=None, search_path=(str(FOLDER),)
            ),
            recipe=memplan.Recipe(micro_batch_size=size),
            device=resolve_device(self.device, budget_bytes=self.budget_bytes),
            budget_bytes=self.budget_bytes,
        )
        return run_trial(request, template=self.template)

    def reading(self, size: int) -> dict[str, Any]:
        """What a run of one micro-batch showed: how full the budget was, and whether it held."""
        outcome = self.tried(size)
        measured = outcome.measurement
        full = None if measured is None else measured.peak_device_bytes / self.budget_bytes
        is_fit = str(outcome.kind) == "fits"
        return {"size": size, "fits": is_fit, "utilisation": None if full is None else round(full, 4)}

    def exhaustive(self) -> dict[str, Any]:
        """Try every micro-batch until one is too large."""
        started, readings = time.perf_counter(), []
        while not readings or readings[-1]["fits"]:
            readings.append(self.reading(len(readings) + 1))
        return {"trials": len(readings), "wall_s": round(time.perf_counter() - started, 2), "readings": readings}

    def ours(self) -> dict[str, Any]:
        """Let memplan search, its estimate included."""
        trials = 0

        def count(event: object) -> None:
            nonlocal trials
            trials += isinstance(event, TrialEnded)

        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as store:
            found = memplan.probe(
                MODELS[self.model](None), memplan.Recipe(micro_batch_size=STARTS_AT), self.device, BAND[1],
                min_util=BAND[0], budget=self.budget_bytes, store=store, observer=count,
            )  # fmt: skip
        wall_s = round(time.perf_counter() - started, 2)
        return {"size": found.recipe.micro_batch_size, "trials": trials, "wall_s": wall_s}

    def other(self, tool: str) -> dict[str, Any]:
        """Run another finder in a process of its own."""
        command = [
            sys.executable,
            str(FOLDER / "search_tools.py"),
            tool,
            self.model,
            self.device,
            str(self.budget_bytes),
        ]
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=FINDER_LIMIT_S, check=False
            )
        lines = ended.stdout.splitlines()
        if not lines or not lines[-1].startswith("{"):
            tail = ended.stderr.strip().splitlines()[-1:] or ["no output"]
            return {
                "size": None,
                "trials": None,
                "wall_s": None,
                "failure": f"exit {ended.returncode}: {tail[0][:200]}",
            }
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def speeds(self, sizes: Iterable[int]) -> dict[str, Any]:
        """Time micro-batches by turns, in one process."""
        wanted = ",".join(map(str, sorted(set(sizes))))
        command = [sys.executable, str(FOLDER / "search_speeds.py"), self.model, self.device, wanted]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=FINDER_LIMIT_S, check=True)
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return found


def in_band(utilisation: float | None) -> bool:
    """Whether a utilisation lies in the band."""
    return utilisation is not None and BAND[0] <= utilisation <= BAND[1]


class Store:
    """What has been found so far, in one file."""

    def __init__(self, path: Path, device: str, budget_bytes: int) -> None:
        self._path = path
        self.content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        about = {"device": device, "budget_bytes": budget_bytes, "memplan": memplan.__version__, **HEAP}
        if self.content.setdefault("about", about) != about:
            raise SystemExit(f"{path} is about {self.content['about']}, not {about}; name another file with --out")

    def once(self, model: str, part: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a part, which is worked out and stored where it is missing."""
        parts: dict[str, Any] = self.content.setdefault(model, {})
        if part not in parts:
            parts[part] = work()
            write_text_atomically(self._path, json.dumps(self.content, indent=1) + "\n")
            shown = {key: value for key, value in parts[part].items() if key != "readings"}
            print(f"{model}  {part}: {shown}", flush=True)
        found: dict[str, Any] = parts[part]
        return found


def run_model(bench: Bench, store: Store) -> None:
    """Let every finder search one model, then run what they found by turns."""
    found = {
        OURS: store.once(bench.model, OURS, bench.ours),
        **{tool: store.once(bench.model, tool, lambda tool=tool: bench.other(tool)) for tool in TOOLS},
        EXHAUSTIVE: store.once(bench.model, EXHAUSTIVE, bench.exhaustive),
    }
    inside = [each["size"] for each in found[EXHAUSTIVE]["readings"] if each["fits"] and in_band(each["utilisation"])]
    answers = [each["size"] for each in found.values() if each.get("size") and _reading(found, each["size"])]
    store.once(bench.model, SPEEDS, lambda: bench.speeds([*inside, *answers]))


def best_inside(parts: dict[str, Any]) -> int | None:
    """The fastest micro-batch inside the band."""
    inside = [each["size"] for each in parts[EXHAUSTIVE]["readings"] if each["fits"] and in_band(each["utilisation"])]
    return max(inside, key=lambda size: parts[SPEEDS][str(size)], default=None)


def table(content: dict[str, Any]) -> str:
    """Write the results as Markdown: one row for each model, one cell for each finder."""
    tools = (OURS, *TOOLS, EXHAUSTIVE)
    lines = ["| model | " + " | ".join(tools) + " |", "|---" * (len(tools) + 1) + "|"]
    finished = {name: parts for name, parts in content.items() if SPEEDS in parts}
    for name, parts in finished.items():
        lines.append(f"| {name} | " + " | ".join(_cell(parts, tool) for tool in tools) + " |")
    sums = {"trials, seconds": _totals, "in the band": _landed, "there, within 3 %": _near, "over the budget": _burst}
    for title, sum_up in sums.items():
        lines.append(f"| **{title}** | " + " | ".join(sum_up(finished, tool) for tool in tools) + " |")
    return "\n".join(lines)


def _reading(parts: dict[str, Any], size: int) -> dict[str, Any] | None:
    """What the exhaustive search saw of a size; None beyond the first that was too large."""
    return next((each for each in parts[EXHAUSTIVE]["readings"] if each["size"] == size and each["fits"]), None)


def _answer(parts: dict[str, Any], tool: str) -> int | None:
    size: int | None = best_inside(parts) if tool == EXHAUSTIVE else parts[tool]["size"]
    return size or None


def _cell(parts: dict[str, Any], tool: str) -> str:
    found, size = parts[tool], _answer(parts, tool)
    if size is None:
        return f"nothing ({found.get('failure') or 'no size in the band'})"
    effort = f"{size} in {found['trials']} trials, {found['wall_s']:.0f} s"
    seen, best = _reading(parts, size), best_inside(parts)
    if seen is None:
        return f"{effort}; **over the budget**"
    speed = f", {parts[SPEEDS][str(size)] / parts[SPEEDS][str(best)]:.0%} of the speed" if best else ""
    return f"{effort}; {seen['utilisation']:.0%} full{speed}"


def _totals(finished: dict[str, Any], tool: str) -> str:
    found = [parts[tool] for parts in finished.values()]
    return f"{sum(each['trials'] or 0 for each in found)}, {sum(each['wall_s'] or 0 for each in found):.0f} s"


def _landed(finished: dict[str, Any], tool: str) -> str:
    return f"{len(_inside(finished, tool))} of {len(finished)}"


def _near(finished: dict[str, Any], tool: str) -> str:
    """Count the answers in the band that run within 3 % of the fastest micro-batch there."""
    speeds = ((parts[SPEEDS], size, best_inside(parts)) for parts, size in _inside(finished, tool))
    return f"{sum(each[str(size)] >= 0.97 * each[str(best)] for each, size, best in speeds)} of {len(finished)}"


def _inside(finished: dict[str, Any], tool: str) -> list[tuple[dict[str, Any], int]]:
    answers = [(parts, size) for parts in finished.values() if (size := _answer(parts, tool))]
    seen = [(parts, size, _reading(parts, size)) for parts, size in answers]
    return [(parts, size) for parts, size, each in seen if each is not None and in_band(each["utilisation"])]


def _burst(finished: dict[str, Any], tool: str) -> str:
    sizes = [(parts, _answer(parts, tool)) for parts in finished.values()]
    return f"{sum(size is not None and _reading(parts, size) is None for parts, size in sizes)} of {len(sizes)}"


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", default="768MiB")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--table", action="store_true", help="only print what is stored")
    arguments = parser.parse_args()
    budget_bytes = parse_bytes(arguments.budget)
    store = Store(arguments.out, arguments.device, budget_bytes)
    if not arguments.table:
        os.environ.update(HEAP)
        print(f"{arguments.device}, {format_bytes(budget_bytes)}", flush=True)
        with trial_template() as template:
            for model in arguments.only.split(","):
                run_model(Bench(model, arguments.device, budget_bytes, template), store)
    print(table({name: parts for name, parts in store.content.items() if name != "about"}))


if __name__ == "__main__":
    main()
