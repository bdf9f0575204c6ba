"""The child side of a trace: build the workload, run its steps on fake tensors, record every allocation."""
