# Depth layers of the Middlebury 2014 "motorcycle" stereo pair.
dataset_type = 'MotorcycleDepthLayers'
classes = ('far', 'middle', 'near', 'very near')
# Disparities in pixels that separate the layers; a larger disparity is nearer.
layer_edges = (20.0, 38.0, 50.0)
crop_size = (256, 256)
img_norm_cfg = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
train_pipeline = [
    dict(type='RandomCrop', crop_size=crop_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='Normalize', **img_norm_cfg),
]
val_pipeline = [
    dict(type='Normalize', **img_norm_cfg),
]
data = dict(
    samples_per_gpu=2,
    workers_per_gpu=0,
    # Columns 0-420 of either view show nothing of what columns 485-741 show, so the two splits do not overlap.
    train=dict(
        type=dataset_type,
        columns=(0, 420),
        layer_edges=layer_edges,
        crops_per_epoch=1000,
        pipeline=train_pipeline),
    val=dict(
        type=dataset_type,
        columns=(485, 741),
        layer_edges=layer_edges,
        tile_size=crop_size,
        pipeline=val_pipeline))
