"""Mean intersection over union on the validation tiles."""

import torch

from depthseg.dataset import build_dataset


def confusion_matrix(predicted, labels, classes):
    """Count pixels by (label, prediction), unlabelled ones left out; shape (classes, classes)."""
    known = labels < classes
    pairs = labels[known] * classes + predicted[known]
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def mean_iou(confusion):
    """Mean over the classes that occur of intersection / union."""
    intersection = confusion.diag()
    union = confusion.sum(0) + confusion.sum(1) - intersection
    return (intersection[union > 0] / union[union > 0]).mean().item()


@torch.no_grad()
def evaluate(model, config, device):
    """Predict the validation tiles one by one and return their mIoU in 0..1."""
    classes = config["model"]["decode_head"]["num_classes"]
    confusion = torch.zeros(classes, classes, dtype=torch.long)
    model.eval()
    tiles = build_dataset(config["data"]["val"])
    for image, labels in map(tiles.__getitem__, range(len(tiles))):
        predicted = model(image[None].to(device)).argmax(1)[0].cpu()
        confusion += confusion_matrix(predicted, labels, classes)
    model.train()
    return mean_iou(confusion)
