"""Transforms of whole batches of images: crop, flip and normalize without a loop over samples.

A transform is a function of a batch and of its samples' random numbers. Those here return a new
batch, and compute each row alone, so that a sample does not depend on the batch that it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from paceline.errors import UsageError, option_invalid
from paceline.train.data.counter_random import SampleRandom

Transform = Callable[[torch.Tensor, SampleRandom], torch.Tensor]

_BYTE_MAX = 255.0


@dataclass(frozen=True)
class RandomCrop:
    """Cut a window at a random place of each image, all places equally likely.

    Args:
        size: Height and width of the window in pixels; one number for a square.
        padding: Pixels to add on each of the four sides first; default 0.
        fill: Value of the added pixels; default 0.
    """

    size: int | tuple[int, int]
    padding: int = 0
    fill: float = 0

    def __post_init__(self) -> None:
        if min(self._height_and_width) < 1 or self.padding < 0:
            raise _invalid(f"{self} needs a positive size, and padding of at least 0")

    @property
    def _height_and_width(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def __call__(self, images: torch.Tensor, random: SampleRandom) -> torch.Tensor:
        """Return windows of images of shape ``[batch, channels, height, width]``."""
        height, width = self._height_and_width
        padded = self._padded(images)
        num_tops = padded.shape[-2] - height + 1
        num_lefts = padded.shape[-1] - width + 1
        if min(num_tops, num_lefts) < 1:
            raise _invalid(
                f"RandomCrop of {height} x {width} is larger than the images, which have"
                f" {padded.shape[-2]} x {padded.shape[-1]} pixels with their padding"
            )
        tops, lefts = random.integers(0, num_tops), random.integers(0, num_lefts)
        return windows(padded, tops, lefts, size=(height, width))

    def _padded(self, images: torch.Tensor) -> torch.Tensor:
        _check_images(images, self)
        if not self.padding:
            return images
        (*outer, height, width), border = images.shape, self.padding
        shape = (*outer, height + 2 * border, width + 2 * border)
        padded = images.new_full(shape, self.fill)  # faster than torch's pad on small images
        padded[..., border : border + height, border : border + width] = images
        return padded


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each image from left to right with a probability.

    Args:
        probability: From 0 to 1; default 0.5.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise _invalid(f"{self}: a probability is from 0 to 1")

    def __call__(self, images: torch.Tensor, random: SampleRandom) -> torch.Tensor:
        """Return images of the same shape."""
        _check_images(images, self)
        is_mirrored = random.chance(self.probability)
        if not _has_numpy_type(images):
            return torch.where(is_mirrored[:, None, None, None], images.flip(-1), images)
        images = images.clone()
        # A view for NumPy, which copies rows in a fifth of torch's time here.
        pixels, rows = images.numpy(), is_mirrored.numpy()
        pixels[rows] = torch.from_numpy(pixels[rows]).flip(-1).numpy()
        return images


@dataclass(frozen=True)
class Normalize:
    """Convert images to floating point and normalize each channel: ``(image - mean) / std``.

    Images of bytes are scaled to 0 .. 1 first, so mean and standard deviation have that scale too,
    as in torchvision. ``Normalize()`` only converts and scales.

    Args:
        mean: Mean of each channel, or one of all; default 0.
        std: Standard deviation of each channel, or one of all; default 1.
        dtype: Type of the result; default float32.
    """

    mean: Sequence[float] | float = 0.0
    std: Sequence[float] | float = 1.0
    dtype: torch.dtype = torch.float32
    _numbers: tuple[tuple[float, ...], tuple[float, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        numbers = _numbers_of(self.mean), _numbers_of(self.std)
        object.__setattr__(self, "_numbers", numbers)
        if not all(value > 0 for value in numbers[1]):
            raise _invalid(f"Normalize(std={self.std}): standard deviations are above 0")
        if not self.dtype.is_floating_point:
            raise _invalid(f"Normalize(dtype={self.dtype}) is not a floating-point type")

    def __call__(self, images: torch.Tensor, random: SampleRandom) -> torch.Tensor:
        """Return images of the same shape, of ``dtype``."""
        _check_images(images, self)
        mean, std = self._numbers
        for numbers in self._numbers:
            if len(numbers) not in (1, images.shape[1]):
                raise _invalid(
                    f"Normalize has {len(numbers)} numbers, and the images have"
                    f" {images.shape[1]} channels"
                )
        scale, offset = _factors(
            mean, std, images.dtype == torch.uint8, dtype=self.dtype, device=images.device
        )
        if images.dtype == self.dtype:
            return images.mul(scale).add_(offset)
        return images.to(self.dtype).mul_(scale).add_(offset)


def windows(
    images: torch.Tensor,  # shape ``[batch, channels, height, width]``
    tops: torch.Tensor,  # first row of each window, integers of shape ``[batch]``
    lefts: torch.Tensor,  # first column of each window, integers of shape ``[batch]``
    *,
    size: tuple[int, int],  # height and width
) -> torch.Tensor:
    """Return a window of each image, in a new tensor of shape ``[batch, channels, *size]``.

    All windows of an image are a view of it, so that one indexing operation copies those of a whole
    batch.
    """
    if _has_numpy_type(images):  # a fifth of torch's time, which copies element by element
        every = sliding_window_view(images.numpy(), size, axis=(-2, -1))
        return torch.from_numpy(every[np.arange(len(images)), :, tops.numpy(), lefts.numpy()])
    rows = torch.arange(len(images), device=images.device)
    return images.unfold(-2, size[0], 1).unfold(-2, size[1], 1)[rows, :, tops, lefts]


@lru_cache(maxsize=64)
def _factors(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    is_bytes: bool,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and offset of each channel, shape ``[channels, 1, 1]``, on the device."""
    top = _BYTE_MAX if is_bytes else 1.0
    means, stds = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    factors = 1.0 / (stds * top), -means / stds
    scale, offset = (factor.to(dtype).view(-1, 1, 1).to(device) for factor in factors)
    return scale, offset


def _numbers_of(values: Any) -> tuple[float, ...]:
    """Return one number, or those of a sequence, array or tensor, as floats."""
    flat = torch.as_tensor(values, dtype=torch.float64).reshape(-1)
    return tuple(flat.tolist())


def _has_numpy_type(images: torch.Tensor) -> bool:
    """Return whether NumPy can read a tensor in place: on the CPU, and not bfloat16."""
    return images.device.type == "cpu" and images.dtype != torch.bfloat16


def _check_images(images: torch.Tensor, transform: object) -> None:
    if images.dim() != 4:
        raise _invalid(
            f"{type(transform).__name__} is for images of shape [batch, channels, height, width],"
            f" and got {list(images.shape)}"
        )


def _invalid(what: str) -> UsageError:
    return option_invalid(what, where="paceline.data.arrays(transform=...)")
