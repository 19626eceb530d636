"""CIFAR-shaped pictures, and the transforms of CIFAR recipes one picture at a time, with PIL.

torchvision does not import everywhere, so its transforms are written here as it writes them.
"""

import numpy as np
import torch
from torch.utils.data import Dataset

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def pictures(length):
    """Return noise as pictures of shape ``[length, 32, 32, 3]``."""
    return np.random.default_rng(0).integers(0, 256, (length, 32, 32, 3), dtype=np.uint8)


class PilPictures(Dataset):
    """CIFAR with torchvision's transforms: RandomCrop, RandomHorizontalFlip, ToTensor, Normalize.

    Args:
        images: Bytes of shape ``[samples, 32, 32, 3]``.
        labels: A number for each.
    """

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        from PIL import Image, ImageOps

        image = ImageOps.expand(Image.fromarray(self.images[index]), border=4, fill=0)
        top, left = (int(torch.randint(0, 9, (1,))) for _ in range(2))
        image = image.crop((left, top, left + 32, top + 32))
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        tensor = tensor.to(torch.float32).div(255)
        return tensor.sub_(self.mean).div_(self.std), self.labels[index]
