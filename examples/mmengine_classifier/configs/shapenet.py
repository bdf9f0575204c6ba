# A classifier of drawn shapes, in the style of OpenMMLab 1.x.
custom_imports = dict(imports=['shapes'])
default_scope = 'mmengine'

model = dict(type='ShapeNet', width=32)
data_preprocessor = dict(type='ImgDataPreprocessor', mean=[127.5], std=[127.5])

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    dataset=dict(type='DrawnShapes', size=160, count=4000),
    sampler=dict(type='DefaultSampler', shuffle=True))

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=1e-4),
    clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=40),
    dict(type='PolyLR', power=0.9, by_epoch=False, begin=40, end=400),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=400)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=10),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=400))
work_dir = 'work_dirs/shapes'
