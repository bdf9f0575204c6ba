"""What operators do on the target device: other kernels, their outputs, temporaries and workspaces."""
