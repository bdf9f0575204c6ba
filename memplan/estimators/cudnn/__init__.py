"""Asks cuDNN which workspaces the convolutions of a step take, on a card that need not be there.

From version 9.8 on cuDNN answers for a device that is only described (NVIDIA's documentation, *Deviceless Ahead-of-time
Compilation*). Its heuristics need neither a card nor torch; they run in a child process, since a library that misses
another one ends its process.
"""

from memplan.estimators.cudnn.answered_traces import with_cudnns_answers

__all__ = ["with_cudnns_answers"]
