"""The child side of a trace: build the workload on fake tensors, run steps, record every allocation."""
