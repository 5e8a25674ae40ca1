"""Work on all cores: processes of one thread each, and every one has a pipe of its own.

They share nothing, neither a queue nor a lock, so that any may be ended at any moment, even in the middle of handing
over: nobody waits for it. (The standard library's pool has one queue for all, and half a message in it blocks it.)
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Thread
from traceback import format_exc
from typing import Any, TypeVar

import torch

from learn2pfed.errors import Learn2pFedError

Item = TypeVar("Item")
Gift = TypeVar("Gift")


def spread(work: Callable[[Item], Gift], tasks: list[Item], n_jobs: int) -> Iterator[tuple[Item, Gift]]:
    """The work on every task, by `n_jobs` processes of one thread each; yields each as it ends."""
    if n_jobs == 1:
        torch.set_num_threads(1)
        for task in tasks:
            yield task, work(task)
        return
    workers: dict[Connection, SpawnProcess] = {}
    todo, doing = deque(tasks), dict[Connection, Item]()

    def give(pipe: Connection) -> None:
        if todo:
            doing[pipe] = todo.popleft()
            with suppress(OSError):  # a process that has ended is found below
                pipe.send(doing[pipe])

    try:
        with _deaf_to_ctrl_c():
            for _ in range(min(n_jobs, len(tasks))):
                _start(work, workers)
        for pipe in workers:
            give(pipe)
        failed = None
        while doing and failed is None:
            for pipe in _with_news(doing):  # also what came in beside a failure
                task = doing.pop(pipe)
                try:
                    gift = _received(pipe, workers[pipe])
                except Exception as error:
                    failed = failed or error
                    continue
                if failed is None:
                    give(pipe)
                yield task, gift
        if failed is not None:
            raise failed
    finally:
        for process in workers.values():
            process.kill()
        for pipe, process in workers.items():
            process.join()
            pipe.close()


def _start(work: Callable[[Item], Gift], workers: dict[Connection, SpawnProcess]) -> None:
    """One more process."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(work, there), daemon=True)  # nobody waits for it at exit
    process.start()
    workers[here] = process
    there.close()  # the process has it: once that has ended, nobody has


def _with_news(doing: dict[Connection, Item]) -> list[Connection]:
    """Who has handed over, or ended; in the order in which they were given their tasks."""
    ready = wait(list(doing))
    return [pipe for pipe in doing if pipe in ready]


def _received(pipe: Connection, process: SpawnProcess) -> Any:
    """What a process hands over; its complaint is raised."""
    try:
        gift, complaint = pipe.recv()
    except (EOFError, OSError) as error:
        process.join(5)
        killed = process.exitcode == -9  # as the system does where memory runs out
        why, how = (", perhaps since the memory was full", ", if need be with fewer --jobs") if killed else ("", "")
        raise Learn2pFedError(
            f"A process at work was ended (exit code {process.exitcode}){why}: what is finished is kept; go on with "
            f"--resume{how}."
        ) from error
    if complaint is not None:
        raise complaint
    return gift


def _serve(work: Callable[[Item], Gift], pipe: Connection) -> None:
    """What a process does: one task after another, until it is ended."""
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    while True:
        task = pipe.recv()
        try:
            pipe.send((work(task), None))
        except Learn2pFedError as error:
            pipe.send((None, error))
        except Exception:  # a fault in a program, and not every one can be sent: what it says can
            pipe.send((None, RuntimeError(f"In a process at work:\n{format_exc()}")))


def _end_with_parent() -> None:
    """Nobody works for a parent that is no more."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started here never hear Ctrl-C: it is for their parent, which hears it at the end and ends them."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    can_block = hasattr(signal, "pthread_sigmask")  # not on Windows
    if can_block:
        resource_tracker.ensure_running()  # multiprocessing's own process: starting it later would unblock the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what is blocked here is blocked in new processes
    try:
        yield
    finally:
        if can_block:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt
