"""What happens to a photograph and its labels before they become a sample."""

import numpy as np
import torch


class RandomCrop:
    """Cut a window of ``crop_size`` (height, width) at a random place."""

    def __init__(self, crop_size):
        self.height, self.width = crop_size

    def __call__(self, image, labels):
        top = _random_below(image.shape[0] - self.height + 1)
        left = _random_below(image.shape[1] - self.width + 1)
        window = np.s_[top : top + self.height, left : left + self.width]
        return image[window], labels[window]


class RandomFlip:
    """Mirror left and right with probability ``prob``."""

    def __init__(self, prob):
        self.prob = prob

    def __call__(self, image, labels):
        if torch.rand(()).item() >= self.prob:
            return image, labels
        return image[:, ::-1], labels[:, ::-1]


class Normalize:
    """Subtract the channels' means and divide by their standard deviations."""

    def __init__(self, mean, std):
        self.mean = np.asarray(mean, dtype=np.float32)
        self.std = np.asarray(std, dtype=np.float32)

    def __call__(self, image, labels):
        return (image.astype(np.float32) - self.mean) / self.std, labels


TRANSFORMS = {each.__name__: each for each in (RandomCrop, RandomFlip, Normalize)}


def build_pipeline(steps):
    """Make the transforms that a config lists."""
    return [TRANSFORMS[step["type"]](**{key: step[key] for key in step if key != "type"}) for step in steps]


def _random_below(end):
    return int(torch.randint(end, ()))  # torch's generator: seeded differently in every loader worker
