log_config = dict(
    interval=50,
    hooks=[
        dict(type='TextLoggerHook', by_epoch=False),
    ])
log_level = 'INFO'
load_from = None
seed = 0
cudnn_benchmark = True
