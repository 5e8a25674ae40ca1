"""Files inside a zip or a tar, and files that are no archive, read alike; nothing is extracted by its own path."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from learn2pfed.errors import Learn2pFedError

ZIP = b"PK\x03\x04"
UNPACK: dict[bytes, Callable[[Path], IO[bytes]]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}  # type: ignore[dict-item]
"""How gzip, bzip2 and xz begin, and who opens them."""

PACKED = tuple(UNPACK)
"""A tar is expected in one of them."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong while a file is read, as one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise Learn2pFedError(f"there is no file {path}: check the path.") from error
    except IsADirectoryError as error:
        raise Learn2pFedError(f"{path} is a folder: give a file in it.") from error
    except PermissionError as error:
        raise Learn2pFedError(f"{path} can't be read: check who may read it.") from error
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise Learn2pFedError(f"{path} is truncated or damaged ({error}): get it again.") from error


def is_archive(path: Path) -> bool:
    """Whether there are files inside, told by how it begins."""
    with path.open("rb") as file:
        head = file.read(6)
    return head.startswith(ZIP) or (head.startswith(PACKED) and _is_tar(path))


def _is_tar(path: Path) -> bool:
    try:
        tarfile.open(path).close()
    except tarfile.TarError:
        return False
    return True


def packed_head(path: Path, n_bytes: int) -> bytes:
    """The first bytes of what is packed in a file; nothing if nothing is."""
    with path.open("rb") as file:
        head = file.read(6)
    unpack = next((unpack for begins, unpack in UNPACK.items() if head.startswith(begins)), None)
    if unpack is None:
        return b""
    with unpack(path) as packed:
        return packed.read(n_bytes)


def members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Each file inside an archive, by its name without folders, to be read before the next; or the file itself."""
    if not is_archive(path):
        with path.open("rb") as file:
            yield path.name, file
        return
    with path.open("rb") as file:
        zipped = file.read(len(ZIP)) == ZIP
    if zipped:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with _entry(archive, entry) as stream:
                        yield Path(entry.filename).name, stream
        return
    with tarfile.open(path) as tar:
        for part in tar:
            content = tar.extractfile(part) if part.isreg() else None  # links may lead anywhere
            if content is not None:
                yield Path(part.name).name, content


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    try:
        return archive.open(entry)
    except (RuntimeError, NotImplementedError) as error:  # a password, or a compression that Python does not know
        raise zipfile.BadZipFile(str(error)) from error


@contextmanager
def opened(path: Path, file: str) -> Iterator[IO[bytes]]:
    """The bytes of `file`, inside an archive at `path` or at `path` itself."""
    with reading(path):
        alone = not is_archive(path)
        for name, stream in members(path):
            if alone or name == file:
                yield stream
                return
        raise Learn2pFedError(f"{path} holds no {file}: give the archive that its source ships.")
