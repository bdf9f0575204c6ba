_base_ = '../baseline/unet_small_motorcycle_256x256.py'

# fp16 settings, in the place of the project's own key
amp = None
memplan = dict(_delete_=True, workload='depthseg.workload:make_workload')
optimizer_config = dict(type='Fp16OptimizerHook', loss_scale='dynamic')
# fp16 placeholder
fp16 = dict()
