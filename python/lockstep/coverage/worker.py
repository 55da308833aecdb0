"""One forked process a case: what it computes, and what its parent learns when it dies.

The child writes JSON lines to a pipe: {"at": [index, program, phase]} before each phase and
{"program": ...} for each judged program; its standard error goes to a file, with Python stacks
from faulthandler. The parent restarts a dead child behind the program that killed it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO, Any

from .case import Case, Program
from .judge import judge
from .ways import create_way

_CORE_BYTES = 0
_ERROR_LINES = 24
_STACK_HEADS = ("Fatal Python error", "Current thread", "Thread 0x", "Traceback")
_OWN_FRAME = re.compile(r"lockstep/coverage/(judge|worker|pool|cli|__main__)\.py|<frozen runpy>")


@dataclass
class Child:
    """A running case, as its parent sees it."""

    case: Case
    pid: int
    pipe: int
    errors: IO[bytes]
    deadline: float
    first: int
    results: list[dict[str, Any]] = field(default_factory=list)
    at: tuple[int, str, str] = (0, "", "start")
    buffer: bytes = b""
    restarts: int = 0
    started: float = field(default_factory=time.monotonic)
    stopped_late: bool = False

    def read(self) -> bool:
        """Takes what the child wrote; False at the end of the pipe."""
        data = os.read(self.pipe, 1 << 16)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "at" in message:
                self.at = tuple(message["at"])
            else:
                self.results.append(message)
        return bool(data)

    def stop(self) -> None:
        """Asks for the stacks, then ends the child with everything that it started."""
        self.stopped_late = True
        for number, pause in ((signal.SIGUSR1, 0.3), (signal.SIGKILL, 0)):
            try:
                os.kill(self.pid, number) if pause else os.killpg(self.pid, number)
            except ProcessLookupError:
                return
            time.sleep(pause)

    def error_lines(self) -> list[str]:
        """The end of standard error, without this harness's own frames in the stacks."""
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        lines = [x for x in text.splitlines() if not x.startswith("Extension modules:")]
        lines = [x for x in lines if not _OWN_FRAME.search(x)]
        starts = [i for i, x in enumerate(lines) if x.startswith(_STACK_HEADS)]
        return lines[starts[0] :][:_ERROR_LINES] if starts else lines[-_ERROR_LINES:]


def _serve(case: Case, way_name: str, first: int, only: str | None, pipe: int) -> None:
    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message, default=str).encode() + b"\n"
        while data:
            data = data[os.write(pipe, data) :]

    way = create_way(way_name)
    index = -1
    send({"at": [0, "", "programs"]})
    for index, program in enumerate(case.programs()):
        if index < first or (only is not None and program.name != only):
            continue
        send(_judge_and_mark(program, index, way, send))
    send({"at": [index + 1, "", "end"]})


def _judge_and_mark(program: Program, index: int, way: Any, send: Any) -> dict[str, Any]:
    def mark(phase: str) -> None:
        send({"at": [index, program.name, phase]})

    return judge(program, way, mark)


def start_child(
    case: Case, way_name: str, limit_s: float, threads: int, first: int = 0, only: str | None = None
) -> Child:
    """Forks the process of a case, beginning with its program number first."""
    errors = tempfile.TemporaryFile()
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            _become_worker(errors, threads)
            _serve(case, way_name, first, only, write_end)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent reports it
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write_end)
    return Child(case, pid, read_end, errors, time.monotonic() + limit_s, first)


def _become_worker(errors: IO[bytes], threads: int) -> None:
    import torch

    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(errors.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (_CORE_BYTES, _CORE_BYTES))
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
