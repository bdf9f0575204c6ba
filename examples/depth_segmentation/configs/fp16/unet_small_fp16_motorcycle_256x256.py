_base_ = '../baseline/unet_small_motorcycle_256x256.py'

# fp16 settings
optimizer_config = dict(type='Fp16OptimizerHook', loss_scale='dynamic')
# fp16 placeholder
fp16 = dict()
