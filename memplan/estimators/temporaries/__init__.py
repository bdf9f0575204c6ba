"""What kernels allocate inside, by lengths alone: for any micro-batch size, and without torch.

``lowering`` says which of these a call needs and with which lengths; a timeline keeps them as functions of the size.
"""
