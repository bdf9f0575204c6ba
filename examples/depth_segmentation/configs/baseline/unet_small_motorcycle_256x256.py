_base_ = [
    '../_base_/models/unet_small.py',
    '../_base_/datasets/motorcycle.py',
    '../_base_/default_runtime.py',
    '../_base_/schedules/schedule_2k.py',
]

data = dict(samples_per_gpu=4, workers_per_gpu=0)

# AdamW instead of the schedule's SGD
optimizer = dict(_delete_=True, type='AdamW', lr=2e-4, betas=(0.9, 0.999), weight_decay=0.01)

lr_config = dict(
    _delete_=True,
    policy='poly',
    warmup='linear',
    warmup_iters=100,
    warmup_ratio=1e-6,
    power=1.0,
    min_lr=0.0,
    by_epoch=False)

runner = dict(type='IterBasedRunner', max_iters=2000)

# This project's own key: float32, tfloat32, float16 or bfloat16.
amp = dict(dtype='float32')

memplan = dict(workload='depthseg.workload:make_workload', knobs=dict(precision='amp.dtype'))
