"""Scenes for a small detector: real handwritten digits, placed on canvases.

Boxes are [top, left, bottom, right] in pixels. Default boxes, and what a network is to
say of each, are those of SSD: Liu et al., arXiv:1512.02325.
"""

from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits

CANVAS = 32
# Ten digits; 0 is the background.
CLASSES = 11
# Cells of each feature map, and the sides of the default boxes in each cell.
MAPS = ((8, (8.0, 12.0)), (4, (16.0,)))
_SIZES = (8, 12, 16)
_MOST_DIGITS = 3
_HELD_OUT = 400
_MATCHING_OVERLAP = 0.5
_VARIANCES = np.array([0.1, 0.1, 0.2, 0.2], np.float32)


@dataclass(frozen=True)
class Scenes:
    """Canvases with their digits.

    Attributes:
      images: [scenes, 32, 32, 1], from 0 to 1.
      boxes: of each scene [digits, 4].
      labels: of each scene [digits], from 1 to 10.
      classes: wanted class of each default box, [scenes, boxes].
      offsets: wanted offsets from each default box, [scenes, boxes, 4].
    """

    images: np.ndarray
    boxes: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]
    classes: np.ndarray
    offsets: np.ndarray


def default_boxes() -> np.ndarray:
    """Return [boxes, 4], in the order in which the network answers."""
    found = []
    for cells, sides in MAPS:
        centers = (np.arange(cells) + 0.5) * CANVAS / cells
        for y in centers:
            for x in centers:
                found += [(y - s / 2, x - s / 2, y + s / 2, x + s / 2) for s in sides]
    return np.array(found, np.float32)


def make_scenes(count: int, seed: int, *, held_out: bool = False) -> Scenes:
    """Return scenes made of digits for training, or of those held out."""
    rng = np.random.default_rng(seed)
    digits = load_digits()
    part = slice(None, _HELD_OUT) if held_out else slice(_HELD_OUT, None)
    images, targets = digits.images[part] / 16.0, digits.target[part] + 1
    scenes = [_scene(images, targets, rng) for _ in range(count)]
    wanted = [_wanted(boxes, labels) for _, boxes, labels in scenes]
    return Scenes(
        images=np.stack([image for image, _, _ in scenes])[..., None].astype(
            np.float32
        ),
        boxes=tuple(boxes for _, boxes, _ in scenes),
        labels=tuple(labels for _, _, labels in scenes),
        classes=np.stack([classes for classes, _ in wanted]),
        offsets=np.stack([offsets for _, offsets in wanted]),
    )


def overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return intersection over union, [first, second]."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=-1)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1) for boxes in (first, second)]
    return shared / (areas[0][:, None] + areas[1][None] - shared)


def boxes_from_offsets(offsets: np.ndarray) -> np.ndarray:
    """Return the boxes [..., 4] that offsets from the default ones stand for."""
    centers, sides = _centers_and_sides(default_boxes())
    scaled = offsets * _VARIANCES
    center = centers + scaled[..., :2] * sides
    half = np.exp(scaled[..., 2:]) * sides / 2
    return np.concatenate([center - half, center + half], axis=-1)


def _scene(
    images: np.ndarray, targets: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    canvas = 0.1 * rng.random((CANVAS, CANVAS), np.float32)
    boxes: list[tuple[int, ...]] = []
    labels: list[int] = []
    for _ in range(rng.integers(1, _MOST_DIGITS + 1)):
        size = int(rng.choice(_SIZES))
        top, left = rng.integers(0, CANVAS - size + 1, size=2)
        box = (top, left, top + size, left + size)
        if boxes and overlaps(np.array([box]), np.array(boxes)).max() > 0:
            continue
        which = rng.integers(len(images))
        digit = ndimage.zoom(images[which], size / 8, order=1)
        canvas[top : top + size, left : left + size] += digit
        boxes.append(box)
        labels.append(int(targets[which]))
    return np.minimum(canvas, 1.0), np.array(boxes, np.float32), np.array(labels)


def _wanted(boxes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes and offsets wanted of the default boxes."""
    default = default_boxes()
    shared = overlaps(default, boxes)
    # Each digit has one default box at least.
    shared[shared.argmax(axis=0), np.arange(len(boxes))] = 2.0
    nearest = shared.argmax(axis=1)
    matches = shared.max(axis=1) >= _MATCHING_OVERLAP
    centers, sides = _centers_and_sides(default)
    wanted_centers, wanted_sides = _centers_and_sides(boxes[nearest])
    shift = (wanted_centers - centers) / sides
    offsets = np.concatenate([shift, np.log(wanted_sides / sides)], axis=-1)
    classes = np.where(matches, labels[nearest], 0).astype(np.int32)
    return classes, (offsets / _VARIANCES).astype(np.float32)


def _centers_and_sides(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
