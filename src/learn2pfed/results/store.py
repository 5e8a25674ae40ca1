"""A run folder: config.toml, results.json, details.json, figures/, report.html, and partial/ while fits are under way.

Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from learn2pfed.errors import Learn2pFedError
from learn2pfed.results.records import Detail, Details, Results, Row


def write_whole(path: Path, content: str | bytes) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise Learn2pFedError(
            f"{path} can't be written ({error.strerror}): choose another folder with --out."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise Learn2pFedError(
            f"{path} can't be written ({error.strerror}): choose another folder with --out."
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)  # there is nothing of that name once it has become the target


def check_free(folder: Path) -> None:
    """Refuse a folder with something in it, before any work is done."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise Learn2pFedError(f"{folder} can't be used ({error.strerror}): choose another with --out.") from error
    if taken:
        raise Learn2pFedError(f"{folder} already holds something: choose another folder with --out.")
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise Learn2pFedError(f"{folder} can't be made in {above}: choose another folder with --out.")


def write_results(file: Path, results: Results) -> None:
    """A `results.json`."""
    write_whole(file, _json(results.model_dump()))


def read_results(path: Path) -> Results:
    """A `results.json`, from the file or from the folder that holds it."""
    file = path / "results.json" if os.path.isdir(path) else path
    try:
        return Results.model_validate_json(file.read_text())
    except OSError as error:
        raise Learn2pFedError(
            f"{file} can't be read ({error.strerror}): give a run folder or a results file."
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise Learn2pFedError(f"{file} is not a results file of learn2pfed: run the experiment again.") from error


def read_details(path: Path) -> Details:
    """The curves beside a results file (`details.json`, or NAME.details.json); none if there is no such file."""
    file = path / "details.json" if os.path.isdir(path) else path.with_name(f"{path.stem}.details.json")
    try:
        return Details.model_validate_json(file.read_text())
    except FileNotFoundError:
        return Details()
    except OSError as error:
        raise Learn2pFedError(f"{file} can't be read ({error.strerror}): check who may read it.") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise Learn2pFedError(f"{file} is damaged: run the experiment again.") from error


def begun(folder: Path, file: str, what: str, *, resume: bool) -> bool:
    """Whether `file` is there to go on with; refuses to go on without it, to begin anew over it or among others'."""
    try:
        there = (folder / file).exists()
    except OSError as error:
        raise Learn2pFedError(f"{folder} can't be used ({error.strerror}): choose another with --out.") from error
    if resume and not there:
        raise Learn2pFedError(
            f"There is no {what} to resume in {folder}: leave out --resume to begin one, or say where it is with --out."
        )
    if there and not resume:
        raise Learn2pFedError(f"{folder} already holds a {what}: add --resume to go on, or choose another --out.")
    if not there:
        check_free(folder)
    return there


class RunFolder:
    """Where one run lives; every finished fit is on disk at once, so that an interrupted run can go on."""

    def __init__(self, path: Path, results: Results, details: Details) -> None:
        self.path = path
        self.results = results
        self.details = details

    @classmethod
    def begin(cls, path: Path, fresh: Results) -> RunFolder:
        """A new folder; from its first file on it can be gone on with."""
        folder = cls(path, fresh, Details())
        write_results(path / "results.json", fresh)
        folder._write("config.toml", to_toml(fresh.config))
        folder.save()
        return folder

    @classmethod
    def go_on(cls, path: Path, fresh: Results) -> RunFolder:
        """An old folder of the same configuration."""
        old = read_results(path)
        if (old.experiment, old.preset, old.config) != (fresh.experiment, fresh.preset, fresh.config):
            raise Learn2pFedError(
                f"{path} holds a run of {old.experiment!r} with other settings: repeat those or choose another --out."
            )
        if old.versions != fresh.versions:
            raise Learn2pFedError(
                f"{path} was begun with {old.made_with}; here is {fresh.made_with}: install those or choose another "
                "--out."
            )
        if old.notes != fresh.notes:
            said = next((note for note in old.notes if note not in fresh.notes), "nothing")
            raise Learn2pFedError(
                f"{path} was begun on other data ({said.rstrip('.')}): give those again or choose another --out."
            )
        folder = cls(path, old, read_details(path))
        folder._write("config.toml", to_toml(old.config))
        return folder

    @property
    def partial(self) -> Path:
        """Where fits rest that are not done yet."""
        return self.path / "partial"

    def add(self, rows: list[Row], detail: Detail | None) -> None:
        """Keep one fit."""
        self.results.rows.extend(rows)
        if detail is not None:
            key = (detail.setting, detail.algorithm, detail.seed)
            kept = [old for old in self.details.details if (old.setting, old.algorithm, old.seed) != key]
            self.details.details = [*kept, detail]
        self.save()

    def take(self, rows: list[Row], details: list[Detail]) -> int:
        """Keep fits of another run that are not here yet; how many there were."""
        here = self.results.done()
        new = [row for row in rows if (row.setting, row.algorithm, row.seed) not in here]
        self.results.rows.extend(new)
        self.details.details += [d for d in details if (d.setting, d.algorithm, d.seed) not in here]
        self.save()
        return len({(row.setting, row.algorithm, row.seed) for row in new})

    def discard_if_empty(self) -> None:
        """Leave nothing behind where nothing was measured, and nothing is under way."""
        under_way = self.partial.is_dir() and any(self.partial.iterdir())
        if self.results.empty and not under_way:
            self.tidy()
            for name in ("config.toml", "details.json", "results.json"):
                (self.path / name).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def tidy(self) -> None:
        """Nothing is under way any more."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def save(self) -> None:
        """Write both files, whole."""
        self._write("details.json", _json(self.details.model_dump()))
        write_results(self.path / "results.json", self.results)

    def _write(self, name: str, content: str) -> None:
        write_whole(self.path / name, content)


def _json(content: dict[str, Any]) -> str:
    """One row a line, so that differences between runs can be read."""
    lists = [name for name, value in content.items() if isinstance(value, list)]
    head = json.dumps({name: value for name, value in content.items() if name not in lists}, indent=1)[:-2]
    parts = [head] if len(head) > 1 else []
    for name in lists:
        rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in content[name])
        parts.append(f' "{name}": [\n  {rows}\n ]')
    return ("{\n" if not head.strip("{") else "") + ",\n".join(parts) + "\n}\n"


def to_toml(config: dict[str, Any], prefix: str = "") -> str:
    """A configuration as TOML: scalars and lists first, then tables. None is left out.

    >>> print(to_toml({"a": 1, "b": {"c": [1.5, "x"], "d": None}}), end="")
    a = 1
    <BLANKLINE>
    [b]
    c = [1.5, "x"]
    """
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in config.items()
        if value is not None and not isinstance(value, dict)
    ]
    for name, value in config.items():
        if isinstance(value, dict):
            lines += ["", f"[{prefix}{name}]", to_toml(value, f"{prefix}{name}.").rstrip("\n")]
    return "\n".join(lines) + "\n"
