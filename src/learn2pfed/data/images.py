"""Images with labels, by name from the cache or from files as they are published; `partition` says who gets which."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learn2pfed.data.image_files import CLASSES, LABELS, PIXELS, read_pictures
from learn2pfed.data.sources import CIFAR10, FASHION, Source, cached_files, mapped
from learn2pfed.errors import Learn2pFedError

SOURCES = {FASHION.name: (FASHION, 60_000), CIFAR10.name: (CIFAR10, 50_000)}
"""What can be loaded by name, and how many of its images are the official training set."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their classes: the official training set, then the test set."""

    name: str
    pixels: NDArray[np.uint8]  # (N, C, H, W)
    labels: NDArray[np.int64]  # (N,)
    n_classes: int
    n_train: int

    def __len__(self) -> int:
        """N."""
        return len(self.labels)


def load_images(source: str | Path) -> Images:
    """Images by name or from files.

    "fashion-mnist" and "cifar10" are in the cache after `learn2pfed data get`, and stay on disk until they are used;
    anything else is the path of an archive or a folder with such files, told by their names, of any number of images in
    ten classes. For a folder called cifar10 write ./cifar10.
    """
    if str(source) in SOURCES:
        return _cached(*SOURCES[str(source)])
    path = Path(source)
    if not os.path.exists(path):  # which, unlike the path's own, never raises
        raise Learn2pFedError(f"there are no images {str(source)!r}: give a path, or one of {', '.join(SOURCES)}.")
    pictures = read_pictures([path])
    return Images(path.name, pictures.pixels, pictures.labels, CLASSES, pictures.n_train)


def _cached(source: Source, n_train: int) -> Images:
    """What rests in the cache, mapped into memory."""
    paths = {path.name: path for path in cached_files(source)}
    pixels, labels = (mapped(paths[name]) for name in (PIXELS, LABELS))
    if not (
        (pixels.ndim, labels.ndim) == (4, 1)
        and len(pixels) == len(labels) > n_train
        and set(np.unique(labels)) == set(range(CLASSES))
    ):
        raise Learn2pFedError(f"{source.folder} is damaged: get it again with learn2pfed data get {source.name}.")
    return Images(source.name, pixels, labels, CLASSES, n_train)
