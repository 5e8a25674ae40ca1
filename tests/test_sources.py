"""Getting data sets: downloads that break and go on, digests, files at hand, and the two commands."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from learn2pfed.cli import main
from learn2pfed.data import sources
from learn2pfed.data.sources import DATASETS, DataSet, Source, cache, cached_files, get, take
from learn2pfed.data.ways import BrokenOffError, Download, SourcePackage, Wheel, download
from learn2pfed.errors import Learn2pFedError

CONTENT = bytes(range(256)) * 4096


def archive(name: str = "loads.txt", content: bytes = CONTENT) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as file:
        file.writestr(f"folder/{name}", content)
    return whole.getvalue()


def cut_tar() -> bytes:
    """A tar that ends inside a file, in a gzip that is whole."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        entry = tarfile.TarInfo("loads.txt")
        entry.size = len(CONTENT)
        tar.addfile(entry, io.BytesIO(CONTENT))
    return gzip.compress(whole.getvalue()[:9999])


class Server:
    """What a small HTTP server on this machine sends, and what it was asked for."""

    def __init__(self) -> None:
        self.body = archive()
        self.cut: int | None = None  # bytes after which the connection ends
        self.ranges = True
        self.asked: list[str | None] = []

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        wanted = handler.headers["Range"]
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if start >= len(self.body):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(self.body)}")
            handler.end_headers()
            return
        rest = self.body[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(rest)))
        handler.end_headers()
        handler.wfile.write(rest[: self.cut])


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    what = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            what.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield what, f"http://127.0.0.1:{http_server.server_address[1]}/loads.zip"
        http_server.shutdown()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("LEARN2PFED_DATA", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def made(*ways: sources.Way, name: str = "loads", file: str = "loads.txt", content: bytes = CONTENT) -> DataSet:
    digest = hashlib.sha256(content).hexdigest()
    return DataSet("some", "Some loads", (Source(name, "loads", "CC0", 1, {file: digest}, ways, "loads.zip"),))


def held(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_download_is_checked_unpacked_and_leaves_nothing_else(server: tuple[Server, str], folder: Path) -> None:
    what, url = server
    told: list[tuple[int, int | None]] = []
    dataset = made(Download((url,)))
    source, failed = get(dataset, lambda done, total: told.append((done, total)))
    assert (source, failed) == (dataset.sources[0], [])
    assert held(folder) == ["loads/loads.txt"]
    assert (folder / "loads" / "loads.txt").read_bytes() == CONTENT
    assert told[-1] == (len(what.body), len(what.body))
    assert get(dataset) == (source, [])
    assert len(what.asked) == 1  # the second time from the cache


def test_a_download_that_breaks_off_goes_on(server: tuple[Server, str], folder: Path) -> None:
    what, url = server
    what.cut = 300_000
    with pytest.raises(BrokenOffError, match="broke off after 300,000 bytes, which are kept: repeat"):
        get(made(Download((url,))))
    assert held(folder) == ["loads/loads.zip.part"]
    what.cut = None
    get(made(Download((url,))))
    assert what.asked == [None, "bytes=300000-"]
    assert held(folder) == ["loads/loads.txt"]


def test_a_server_without_ranges_sends_all_again(server: tuple[Server, str], folder: Path, tmp_path: Path) -> None:
    what, url = server
    what.ranges = False
    part = tmp_path / "loads.part"
    part.write_bytes(b"old")
    assert download(url, part, lambda done, total: None).read_bytes() == what.body


def test_a_part_that_is_whole_or_too_long_does_no_harm(server: tuple[Server, str], tmp_path: Path) -> None:
    what, url = server
    part = tmp_path / "loads.part"
    for there in (what.body, what.body + b"more"):
        part.write_bytes(there)
        assert download(url, part, lambda done, total: None).read_bytes() == what.body
    n = len(what.body)
    assert what.asked == [f"bytes={n}-", f"bytes={n + 4}-", None]  # only the part that is too long comes again


@pytest.mark.parametrize(
    "body",
    [archive(content=CONTENT[:-1] + b"?"), archive()[:-50], cut_tar(), archive("other.txt"), b"<html>not here</html>"],
    ids=["another digest", "a cut zip", "a cut tar", "another file", "a page"],
)
def test_what_is_not_the_published_file_is_refused_and_removed(
    server: tuple[Server, str], folder: Path, body: bytes
) -> None:
    server[0].body = body
    with pytest.raises(Learn2pFedError, match=r"some can't be had: .*get it again.*--from PATH"):
        get(made(Download((server[1],))))
    assert held(folder) == []


def test_an_archive_with_a_wrong_byte_is_refused(server: tuple[Server, str], folder: Path) -> None:
    body = bytearray(archive())
    body[len(body) // 2] ^= 1
    server[0].body = bytes(body)
    with pytest.raises(Learn2pFedError, match="Bad CRC-32"):
        get(made(Download((server[1],))))
    assert held(folder) == []


def test_without_a_network_the_sentence_says_what_to_do() -> None:
    with pytest.raises(Learn2pFedError) as caught:
        get(made(Download(("http://127.0.0.1:9/loads.zip",))))
    said = str(caught.value)
    assert "http://127.0.0.1:9/loads.zip can't be reached" in said
    assert said.endswith("Get loads.zip by other means, then: learn2pfed data get some --from PATH")


def test_the_next_source_serves_when_the_first_is_out_of_reach(server: tuple[Server, str], folder: Path) -> None:
    first = made(Download(("http://127.0.0.1:9/loads.zip",)))
    second = made(Download((server[1],)), name="few")
    both = replace(first, sources=first.sources + second.sources)
    source, failed = get(both)
    assert source.name == "few"
    assert len(failed) == 1
    assert held(folder) == ["few/loads.txt"]


def test_several_files_come_together(server: tuple[Server, str], folder: Path) -> None:
    what, url = server
    files = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b")}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as file:
        for name in files:
            file.writestr(name, name)
    what.body = whole.getvalue()
    dataset = made()
    dataset = replace(dataset, sources=(replace(dataset.sources[0], files=files, ways=(Download((url,)),)),))
    source, _ = get(dataset)
    assert held(folder) == ["loads/a", "loads/b"]
    (folder / "loads" / "b").unlink()
    assert not source.cached


def test_a_wheel_comes_as_pip_is_set_up(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("some_loads/loads.txt", CONTENT)
        file.writestr("some_loads-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-loads\nVersion: 1.0\n")
        file.writestr("some_loads-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    (tmp_path / "some_loads-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    get(made(Wheel("some-loads==1.0")))
    assert held(folder) == ["loads/loads.txt"]
    with pytest.raises(Learn2pFedError, match=r"pip could not get some-loads==2.0 \(.*No matching distribution"):
        get(made(Wheel("some-loads==2.0"), name="others"))


@pytest.mark.skipif(os.name == "nt", reason="a script in place of R")
def test_an_r_package_comes_as_r_is_set_up(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Learn2pFedError, match="R, which would get the package Some, is not installed"):
        get(made(SourcePackage("Some")))
    (tmp_path / "it").write_bytes(archive())
    r = tmp_path / "Rscript"
    r.write_text(
        f'#!{sys.executable}\nimport shutil, sys\nshutil.copy("{tmp_path}/it", sys.argv[-1] + "/Some.tar.gz")\n'
    )
    r.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    get(made(SourcePackage("Some")))
    assert held(folder) == ["loads/loads.txt"]


def test_a_file_at_hand_is_told_by_its_digest(tmp_path: Path, folder: Path) -> None:
    two = made()
    two = replace(two, sources=two.sources + made(name="few", file="few.txt", content=b"few").sources)
    (tmp_path / "packed").write_bytes(archive())
    (tmp_path / "plain").write_bytes(b"few")
    (tmp_path / "other").write_bytes(b"neither")
    with pytest.raises(Learn2pFedError, match="nor holds it"):
        take(two, tmp_path / "other")
    assert not folder.exists() or not list(folder.iterdir())  # nothing is left of a file that is refused
    assert take(two, tmp_path / "packed").name == "loads"
    assert take(two, tmp_path / "plain").name == "few"
    assert held(folder) == ["few/few.txt", "loads/loads.txt"]
    assert (tmp_path / "plain").exists()
    with pytest.raises(
        Learn2pFedError, match=r"other neither is loads.txt as it was published \(sha256 .*\) nor holds it"
    ):
        take(two, tmp_path / "other")
    with pytest.raises(
        Learn2pFedError, match=r"^there is no file .*: check the path, or leave --from out: learn2pfed data get some\.$"
    ):
        take(two, tmp_path / "nothing")


def test_what_is_damaged_in_the_cache_is_got_again(server: tuple[Server, str], folder: Path) -> None:
    dataset = made(Download((server[1],)))
    source, _ = get(dataset)
    (kept,) = cached_files(source)
    kept.write_bytes(CONTENT[:-1])
    assert source.cached
    assert not source.sound
    with pytest.raises(Learn2pFedError, match="can't be had"):
        get(made())
    assert get(dataset)[0].sound
    assert kept.read_bytes() == CONTENT
    assert held(folder) == ["loads/loads.txt"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("LEARN2PFED_DATA", str(tmp_path / "taken"))
    with pytest.raises(Learn2pFedError, match=r"can't be written .*name another folder in LEARN2PFED_DATA"):
        take(made(), tmp_path / "taken")


def test_the_cache_is_the_platforms_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEARN2PFED_DATA")
    assert cache().name == "learn2pfed"
    assert cache().is_absolute()


def test_every_source_has_a_name_of_its_own_and_whole_digests() -> None:
    every = [source for dataset in DATASETS.values() for source in dataset.sources]
    assert len({source.name for source in every}) == len(every)
    for source in every:
        assert source.ways
        assert all(len(bytes.fromhex(digest)) == 32 for digest in source.files.values())
        with pytest.raises(Learn2pFedError, match="is not in the cache: get it with learn2pfed data get"):
            cached_files(source)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["learn2pfed", "data", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_commands(
    server: tuple[Server, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sources.DATASETS, "some", made(Download((server[1],))))
    assert command(monkeypatch, "list") == 0
    said = capsys.readouterr().out
    for word in ("electricity: ", "ecl-20", "households", "CC BY-SA 4.0", "Some loads", "sample", str(cache())):
        assert word in said
    assert "in the cache" not in said
    assert command(monkeypatch, "get", "some") == 0
    assert str(cache() / "loads") in capsys.readouterr().out
    assert command(monkeypatch, "list") == 0
    assert "in the cache" in capsys.readouterr().out
    assert command(monkeypatch, "get", "none") == 2
    assert (
        "there is no data set 'none': choose one of electricity, households, fashion-mnist, cifar10, some, ecl"
        in capsys.readouterr().err
    )
    (tmp_path / "plain").write_bytes(b"no loads")
    assert command(monkeypatch, "get", "some", "--from", str(tmp_path / "plain")) == 2
    assert "as it was published" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on_and_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped:
        def __init__(self, part: str | None) -> None:
            self.part = part

        def fetch(self, folder: Path, report: sources.Report) -> list[Path]:
            if self.part:
                (folder / self.part).write_bytes(b"some of it")
            raise KeyboardInterrupt

    monkeypatch.setitem(sources.DATASETS, "some", made(Stopped(None)))  # as pip, which keeps nothing
    assert command(monkeypatch, "get", "some") == 130
    assert "Nothing is kept; begin again with: learn2pfed data get some" in capsys.readouterr().out
    monkeypatch.setitem(sources.DATASETS, "some", made(Stopped("loads.zip.part")))
    assert command(monkeypatch, "get", "some") == 130
    assert "What is there is kept; go on with: learn2pfed data get some" in capsys.readouterr().out


def test_less_than_the_best_source_is_said_to_be_less(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = made(Download(("http://127.0.0.1:9/loads.zip",)), name="full")
    both = replace(full, sources=full.sources + made(Download((server[1],)), name="few").sources)
    monkeypatch.setitem(sources.DATASETS, "some", both)
    for _ in range(2):  # had now, and cached
        assert command(monkeypatch, "get", "some") == 0
        said = capsys.readouterr().out
        assert "Not had: http://127.0.0.1:9/loads.zip can't be reached" in said
        assert "This is not the full data, full (loads): get loads.zip by other means" in said
        assert "then: learn2pfed data get full --from PATH" in said
    assert command(monkeypatch, "get", "full") == 2  # that one and nothing less
    complaint = capsys.readouterr().err
    assert complaint.rstrip().endswith("Get loads.zip by other means, then: learn2pfed data get full --from PATH")
    assert command(monkeypatch, "get", "few") == 0
    assert "This is not" not in capsys.readouterr().out
