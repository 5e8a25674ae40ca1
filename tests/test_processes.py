"""Work on all cores: every task is done once, and whatever happens to a process or its parent, nobody waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.experiments.processes import spread

SOON = 60.0


def until(happens: Callable[[], object]) -> bool:
    """Whether it happens soon."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        if happens():
            return True
        time.sleep(0.01)
    return False


def who(task: int) -> tuple[int, int, int]:
    return task**2, os.getpid(), torch.get_num_threads()


@pytest.mark.parametrize(("n_tasks", "n_jobs", "n_processes"), [(7, 2, 2), (2, 5, 2), (3, 1, 1), (0, 2, 0)])
def test_every_task_is_done_once(n_tasks: int, n_jobs: int, n_processes: int) -> None:
    found = dict(spread(who, list(range(n_tasks)), n_jobs))
    assert {task: square for task, (square, _, _) in found.items()} == {task: task**2 for task in range(n_tasks)}
    assert {threads for _, _, threads in found.values()} <= {1}
    pids = {pid for _, pid, _ in found.values()}
    assert len(pids) <= n_processes  # one may do all while another starts
    assert (os.getpid() in pids) == (n_jobs == 1)
    assert not active_children()


class OddError(Exception):
    """Can be sent, but not received."""

    def __init__(self, one: str, another: str) -> None:
        super().__init__(one + another)


def complain(task: str) -> object:
    if task == "odd":
        raise OddError("very ", "odd")
    if task == "unsendable":
        return lambda: task
    raise DivergenceError(f"{task} diverged.")


def test_what_a_process_complains_of_is_raised() -> None:
    with pytest.raises(DivergenceError, match=r"^it diverged\.$"):
        list(spread(complain, ["it", "it"], 2))
    with pytest.raises(RuntimeError, match=r"In a process at work:\n(?s:.*)pickle"):
        list(spread(complain, ["unsendable", "unsendable"], 2))
    with pytest.raises(RuntimeError, match=r"In a process at work:\n(?s:.*)raise OddError\((?s:.*)OddError: very odd"):
        list(spread(complain, ["odd", "odd"], 2))
    assert not active_children()


def end_at(task: str) -> str:
    if task == "ended":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "left":
        os._exit(3)
    if task == "long":
        time.sleep(10 * SOON)
    return task


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ("ended", r"was ended \(exit code -9\), perhaps since the memory was full: .* --resume, if need be with fewer"),
        ("left", r"was ended \(exit code 3\): what is finished is kept; go on with --resume\.$"),
    ],
)
def test_a_process_that_is_ended_from_outside_is_a_sentence(task: str, complaint: str) -> None:
    with pytest.raises(Learn2pFedError, match=complaint):
        list(spread(end_at, ["long", task], 2))
    assert not active_children()


def fail_or_finish(place: Path) -> str:
    """The quick one at once, the others when they are told."""
    place.touch()
    assert place.name == "quick" or until((place.parent / "go").exists)
    if place.name == "fails":
        raise Learn2pFedError("failed")
    return place.name


def test_what_is_finished_beside_a_failure_is_handed_over(tmp_path: Path) -> None:
    quick, *others = tasks = [tmp_path / name for name in ("quick", "fails", "fine")]
    with closing(spread(fail_or_finish, tasks, 3)) as gifts:
        found = [next(gifts)[0]]
        assert until(lambda: all(place.exists() for place in others))
        (tmp_path / "go").touch()
        time.sleep(1)  # both end before anybody looks
        with pytest.raises(Learn2pFedError, match=r"^failed$"):
            found.extend(task for task, _ in gifts)
    assert found == [quick, tmp_path / "fine"]


class Large:
    """More than a pipe holds, so that who hands it over waits until it is taken."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        self.place.write_text(str(os.getpid()))
        return bytes, (b"0" * 50_000_000,)


def hand_over(place: Path) -> Large | None:
    return Large(place) if place.name == "large" and until((place.parent / "go").exists) else None


@pytest.mark.parametrize("by", ["us", "others"])
def test_a_process_may_be_ended_while_it_hands_over(by: str, tmp_path: Path) -> None:
    place = tmp_path / "large"
    with closing(spread(hand_over, [tmp_path / "small", place], 2)) as gifts:  # as whoever leaves the loop does
        assert next(gifts)[0].name == "small"
        (tmp_path / "go").touch()
        assert until(place.exists)
        time.sleep(0.5)
        if by == "others":
            os.kill(int(place.read_text()), signal.SIGKILL)
            with pytest.raises(Learn2pFedError, match="ended"):
                next(gifts)
    assert not active_children()


ALIVE = """
import time
from learn2pfed.experiments.processes import spread

def beat(name):
    while True:
        with open(name, "a") as file:
            file.write(".")
        time.sleep(0.02)

if __name__ == "__main__":
    list(spread(beat, ["one", "another"], 2))
"""


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGINT])
def test_nobody_works_on_for_a_parent_that_is_no_more(ends: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "alive.py").write_text(
        f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler){ALIVE}"
    )
    with subprocess.Popen([sys.executable, "alive.py"], cwd=tmp_path, stderr=subprocess.DEVNULL) as parent:

        def beats() -> list[int]:
            return [file.stat().st_size for name in ("one", "another") if (file := tmp_path / name).exists()]

        try:
            assert until(lambda: len(beats()) == 2)
            parent.send_signal(ends)
            assert until(lambda: parent.poll() is not None)
        finally:
            parent.kill()

    def silent() -> bool:
        before = beats()
        time.sleep(0.5)
        return beats() == before

    assert until(silent)
