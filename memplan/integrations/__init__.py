"""memplan inside training scripts: one call before training for each framework, and a check while it runs.

Each module belongs to an extra (``memplan[lightning]``, ``[transformers]``, ``[mmengine]``) and says so where its
framework is missing. Planning happens in child processes; nothing of the user's model is built in the caller's.
"""
