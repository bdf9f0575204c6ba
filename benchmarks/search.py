"""How many trials and how much time a search takes, and how fast and how full its answer runs, beside other finders.

    python benchmarks/search.py --out benchmarks/search_cpu.json [--budget 768MiB] [--device cpu] [--only NAME,...]

For ten small models and one budget: memplan, PyTorch Lightning's batch-size finder (power and binsearch), accelerate's
``find_executable_batch_size`` and an exhaustive search, which tries every micro-batch from 1 until one is too large.
All run for real; needs lightning and accelerate. The others run in a process whose memory is limited to the budget
(``search_tools.py`` says how). How full and how fast their answers run is read off the exhaustive search; memplan's
answer and the best one are run again by turns. A throughput is that of the fastest timed step, which other work on the
machine disturbs least. Every finished part is stored, and what is stored is not run again. With ``--device cuda:0`` the
same runs on a card, capped at the budget.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_models import MODELS
from search_tools import TOOLS

import memplan
from memplan.devices import resolve_device
from memplan.probe import TrialRequest, run_trial, trial_template
from memplan.progress import TrialEnded
from memplan.textfiles import write_text_atomically
from memplan.units import format_bytes, parse_bytes
from memplan.workload import WorkloadReference

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.children import Template
    from memplan.results import Outcome

BAND = (0.6, 0.8)
ROUNDS = 3
FINDER_LIMIT_S = 1200
FOLDER = Path(__file__).parent
OURS, EXHAUSTIVE, DUEL = "memplan", "exhaustive", "duel"
STARTS_AT = 2  # what Lightning starts from too


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
        """What a run of one micro-batch showed: how full, how fast, and how it ended."""
        outcome = self.tried(size)
        measured = outcome.measurement
        full = None if measured is None else measured.peak_device_bytes / self.budget_bytes
        fastest_s = None if measured is None else min(measured.step_times_s)
        return {
            "size": size,
            "fits": str(outcome.kind) == "fits",
            "utilisation": None if full is None else round(full, 4),
            "samples_per_s": None if fastest_s is None else round(size / fastest_s, 3),
        }

    def exhaustive(self) -> dict[str, Any]:
        """Try every micro-batch until one is too large."""
        started, readings = time.perf_counter(), []
        while not readings or readings[-1]["fits"]:
            readings.append(self.reading(len(readings) + 1))
        inside = [each for each in readings if each["fits"] and in_band(each["utilisation"])]
        best = max(inside, key=lambda each: each["samples_per_s"], default=None)
        return {
            "size": best and best["size"],
            "trials": len(readings),
            "wall_s": round(time.perf_counter() - started, 2),
            "readings": readings,
        }

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

    def duel(self, ours: int, best: int) -> dict[str, Any]:
        """Run two sizes by turns and return the throughput of the first over that of the second."""
        speeds: dict[int, float] = {}
        for _ in range(ROUNDS if ours != best else 0):
            for size in (ours, best):
                reading = self.reading(size)
                speeds[size] = max(speeds.get(size, 0.0), reading["samples_per_s"] or 0.0)
        return {"relative_speed": round(speeds[ours] / speeds[best], 4) if speeds else 1.0}


def in_band(utilisation: float | None) -> bool:
    """Whether a utilisation lies in the band."""
    return utilisation is not None and BAND[0] <= utilisation <= BAND[1]


class Store:
    """What has been found so far, in one file."""

    def __init__(self, path: Path, device: str, budget_bytes: int) -> None:
        self._path = path
        self.content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        about = {"device": device, "budget_bytes": budget_bytes, "memplan": memplan.__version__}
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
    ours, best = found[OURS]["size"], found[EXHAUSTIVE]["size"]
    if ours and best:
        store.once(bench.model, DUEL, lambda: bench.duel(ours, best))


def table(content: dict[str, Any]) -> str:
    """Write the results as Markdown: one row for each model, one cell for each finder."""
    tools = (OURS, *TOOLS, EXHAUSTIVE)
    lines = ["| model | " + " | ".join(tools) + " |", "|---" * (len(tools) + 1) + "|"]
    finished = {name: parts for name, parts in content.items() if DUEL in parts}
    for name, parts in finished.items():
        lines.append(f"| {name} | " + " | ".join(_cell(parts, tool) for tool in tools) + " |")
    for title, sum_up in (("trials, seconds", _totals), ("in the band", _landed), ("over the budget", _burst)):
        lines.append(f"| **{title}** | " + " | ".join(sum_up(finished, tool) for tool in tools) + " |")
    return "\n".join(lines)


def _reading(parts: dict[str, Any], size: int) -> dict[str, Any] | None:
    """What the exhaustive search saw of a size; None beyond the first that was too large."""
    return next((each for each in parts[EXHAUSTIVE]["readings"] if each["size"] == size and each["fits"]), None)


def _cell(parts: dict[str, Any], tool: str) -> str:
    found = parts[tool]
    if not found["size"]:
        return f"nothing ({found.get('failure') or 'no size in the band'})"
    effort = f"{found['size']} in {found['trials']} trials, {found['wall_s']:.0f} s"
    seen, best = _reading(parts, found["size"]), _reading(parts, parts[EXHAUSTIVE]["size"])
    if seen is None or best is None:
        return f"{effort}; **over the budget**"
    speed = parts[DUEL]["relative_speed"] if tool == OURS else seen["samples_per_s"] / best["samples_per_s"]
    return f"{effort}; {seen['utilisation']:.0%} full, {speed:.0%} of the speed"


def _totals(finished: dict[str, Any], tool: str) -> str:
    found = [parts[tool] for parts in finished.values()]
    return f"{sum(each['trials'] or 0 for each in found)}, {sum(each['wall_s'] or 0 for each in found):.0f} s"


def _landed(finished: dict[str, Any], tool: str) -> str:
    seen = [_reading(parts, parts[tool]["size"]) for parts in finished.values()]
    return f"{sum(each is not None and in_band(each['utilisation']) for each in seen)} of {len(seen)}"


def _burst(finished: dict[str, Any], tool: str) -> str:
    sizes = [(parts, parts[tool]["size"]) for parts in finished.values()]
    return f"{sum(bool(size) and _reading(parts, size) is None for parts, size in sizes)} of {len(sizes)}"


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
        print(f"{arguments.device}, {format_bytes(budget_bytes)}", flush=True)
        with trial_template() as template:
            for model in arguments.only.split(","):
                run_model(Bench(model, arguments.device, budget_bytes, template), store)
    print(table({name: parts for name, parts in store.content.items() if name != "about"}))


if __name__ == "__main__":
    main()
