"""memplan inside training scripts: one call before training for each framework, and a check while it runs.

The module of each framework belongs to an extra (``memplan[lightning]``, ``[transformers]``, ``[mmengine]``) and says
so where that is missing; ``plain`` needs none. Planning happens in child processes; nothing of the user's model is
built in the caller's.
"""
