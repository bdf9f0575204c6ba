"""How long memplan takes to answer before it does any work, beside the interpreter's own start.

Run it with ``python benchmarks/startup.py``. Each command is started twenty times after one warm-up; times are wall
time of the whole process, and the ratio to the bare interpreter is what to compare between machines.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 20
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "import memplan": (sys.executable, "-c", "import memplan"),
    "memplan --help": (sys.executable, "-m", "memplan", "--help"),
    "memplan gpus": (sys.executable, "-m", "memplan", "gpus"),
}


def wall_times_s(command: tuple[str, ...]) -> list[float]:
    """Start a command ``RUNS`` times after one warm-up and return each wall time."""
    times = []
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return times[1:]


def main() -> None:
    """Print a table of medians."""
    print(f"{'command':<18} {'median':>8} {'min':>8} {'max':>8}   over the interpreter")
    bare = None
    for name, command in COMMANDS.items():
        times = wall_times_s(command)
        median = statistics.median(times)
        bare = bare or median
        print(f"{name:<18} {median:>7.3f}s {min(times):>7.3f}s {max(times):>7.3f}s   {median / bare:.1f}x")


if __name__ == "__main__":
    main()
