"""``python -m memplan``."""

from __future__ import annotations

from memplan.cli import main

if __name__ == "__main__":
    main()
