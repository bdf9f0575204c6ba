# model settings
model = dict(
    type='EncoderDecoder',
    backbone=dict(
        type='SmallUNet',
        in_channels=3,
        base_channels=20,
        num_stages=4,
        with_cp=False),
    decode_head=dict(
        type='FCNHead',
        num_classes=4,
        ignore_index=255))
