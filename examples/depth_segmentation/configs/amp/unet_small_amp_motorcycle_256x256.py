_base_ = '../baseline/unet_small_motorcycle_256x256.py'

# This project's own key: float32, tfloat32, float16 or bfloat16.
amp = dict(dtype='float32')

memplan = dict(knobs=dict(precision='amp.dtype'))
