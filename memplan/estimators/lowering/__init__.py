"""The target device's kernels: which ones operators run there, their results, temporaries and workspaces."""
