"""Runs one program eagerly and in lockstep, and many of them in forked children.

`check_program` runs in this process. `check_seeds` forks one child for each chunk of seeds: a
crash or a hang costs only the program that it happened in, and is reported with its seed.
"""

import json
import os
import random
import select
import signal
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # noqa: F401  (optimizers import these when first used: once here, not per child)
import torch.distributed.tensor  # noqa: F401
from random_compare import first_difference, snapshot
from random_program import load, program_text

CALLS = 6
TOLERANCE = 1e-3  # where numerics is not strict
PYTHON_FOLDER = Path(__file__).resolve().parents[3] / "python"
if str(PYTHON_FOLDER) not in sys.path:
    sys.path.append(str(PYTHON_FOLDER))


def restore(states):
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def current():
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def raised(error, file):
    """Type, message and the frames from the first one inside the program on."""
    frames = [(f.filename, f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    while frames and frames[0][0] != file:
        frames.pop(0)
    ours = [frame[1:] if frame[0] == file else frame[:2] for frame in frames]
    return [type(error).__name__, str(error), ours]


def nudged(value):
    """A float tensor whose numbers are a few units in the last place larger; others as they are."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    return value * (1 + 4 * torch.finfo(torch.float32).eps)


def run_call(module, state, step, call, nudge=False):
    """One call and its snapshot: result or exception, state, arguments, random states."""
    arguments = module.inputs(call)
    if nudge:
        arguments = tuple(map(nudged, arguments))
    values = {"state": state, "arguments": list(arguments)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values["result"] = step(state, *arguments)
        except Exception as error:
            values["raised"] = raised(error, module.__file__)
            del error
        found = snapshot(values)
        try:
            module.between(state, call)
        except RuntimeError as error:
            found.append(("between raised", str(error)))
    return found


def run_eager(text, name, calls):
    module = load(text, name)
    state = module.start()
    return [run_call(module, state, module.step, call) for call in range(calls)]


def is_ill_conditioned(text, name, calls, expected):
    """Whether eager itself leaves the tolerance where its inputs change in the last bits.

    A gradient that is rounding noise alone, made a step of full size by an optimizer, does.
    """
    module = load(text, name)
    state = module.start()
    with torch.no_grad():
        for weight in state.weights():
            weight.copy_(nudged(weight))
    for call, eager in enumerate(expected[:calls]):
        found = run_call(module, state, module.step, call, nudge=True)
        if first_difference(eager, found, TOLERANCE):
            return True
    return False


def check_program(text, name="program", calls=CALLS, options=None, stats=None):
    """None, or what differs first between eager and lockstep, as a dict with `kind` and `text`.

    options: knobs; and `session=True` for one session around all calls instead of the decorator.
    """
    import lockstep

    before = current()
    expected = run_eager(text, name, calls)
    restore(before)
    module = load(text, name)
    state = module.start()
    knobs = {"numerics": "strict", "when": "always", **(options or {})}
    tolerance = None if knobs["numerics"] == "strict" else TOLERANCE
    if knobs.pop("session", False):
        with lockstep.session(**knobs) as counted:
            failure = compare_calls(module, state, module.step, expected, tolerance)
    else:
        counted = lockstep.function(module.step, **knobs)
        failure = compare_calls(module, state, counted, expected, tolerance)
    if failure and tolerance:
        restore(before)
        if is_ill_conditioned(text, name, calls, expected):
            failure = None
    if stats is not None:
        for key, value in lockstep.stats(counted).items():
            if isinstance(value, (int, float)):
                stats[key] = stats.get(key, 0) + value
    return failure


def compare_calls(module, state, step, expected, tolerance):
    from lockstep import _C

    for call, eager in enumerate(expected):
        difference = first_difference(eager, run_call(module, state, step, call), tolerance)
        if tolerance:  # the next call runs fused
            _C.wait_for_kernels()
        if difference:
            kind = difference.split(" differs", 1)[0].split("[", 1)[0]
            return {"kind": kind, "text": f"call {call}: {difference}"}
    return None


def child(seeds, options, pipe):
    """Checks the seeds in order; one JSON line before and one after each program."""
    stats = {}
    with os.fdopen(pipe, "w", buffering=1) as out:
        for seed in seeds:
            print(json.dumps({"seed": seed, "event": "start"}), file=out)
            try:
                failure = check_program(program_text(seed), f"seed{seed}", CALLS, options, stats)
            except BaseException:
                failure = {"kind": "harness", "text": traceback.format_exc()}
            print(json.dumps({"seed": seed, "event": "done", "failure": failure}), file=out)
        print(json.dumps({"seed": None, "event": "stats", "stats": stats}), file=out)


def fork_child(work):
    """Runs work(write end of a pipe) in a forked child; returns (process id, read end)."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os.close(reader)
        code = 1
        try:
            work(writer)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    return process, reader


def read_lines(process, reader, timeout):
    """Yields the child's JSON lines, at the end {"event": "end", "reason": ...}.

    Kills a child that is silent for too long, or whose lines nobody wants any more.
    """
    buffer, reason, ended = b"", None, False
    try:
        while not ended:
            ready, _, _ = select.select([reader], [], [], timeout)
            if not ready:
                reason = f"hang: no progress for {timeout} s"
                break
            data = os.read(reader, 65536)
            ended = not data
            *lines, buffer = (buffer + data).split(b"\n")
            yield from (json.loads(line) for line in lines)
    finally:
        if not ended:
            os.kill(process, signal.SIGKILL)
        os.close(reader)
        _, status = os.waitpid(process, 0)
    if reason is None and os.WIFSIGNALED(status):
        reason = f"crash: {signal.Signals(os.WTERMSIG(status)).name}"
    elif reason is None and os.WEXITSTATUS(status):
        reason = f"crash: exit status {os.WEXITSTATUS(status)}"
    yield {"event": "end", "reason": reason}


def check_seeds(seeds, options=None, timeout=60.0, stats=None):
    """Yields (seed, failure or None); a crash or hang is a failure of the seed it happened in."""
    seeds = list(seeds)
    while seeds:
        todo, running = list(seeds), None
        for line in read_lines(*fork_child(lambda pipe: child(todo, options, pipe)), timeout):
            if line["event"] == "start":
                running = line["seed"]
            elif line["event"] == "done":
                seeds.remove(line["seed"])
                running = None
                yield line["seed"], line["failure"]
            elif line["event"] == "stats" and stats is not None:
                for key, value in line["stats"].items():
                    stats[key] = stats.get(key, 0) + value
            elif line["event"] == "end" and line["reason"]:
                where = " at the child's exit" if running is None else ""
                seed = seeds.pop(0) if running is not None else todo[-1]
                failure = {"kind": line["reason"].split(":")[0] + where, "text": line["reason"]}
                yield seed, failure
                if running is None:
                    return


class Checker:
    """Checks texts one by one in a forked child, which lives until it crashes or hangs."""

    def __init__(self, options=None, timeout=20.0):
        self.options, self.timeout = options, timeout
        self.process = None

    def check(self, text, calls=CALLS):
        """check_program of one text: None or the failure, crashes and hangs too."""
        if self.process is None:
            self.start()
        os.write(self.writer, (json.dumps([text, calls]) + "\n").encode())
        for line in self.lines:
            if line["event"] == "done":
                return line["failure"]
            self.process = None
            os.close(self.writer)
            reason = line["reason"] or "crash: the child ended"
            return {"kind": reason.split(":")[0], "text": reason}

    def start(self):
        reader, self.writer = os.pipe()

        def work(pipe):
            os.close(self.writer)
            with os.fdopen(reader) as wanted, os.fdopen(pipe, "w", buffering=1) as out:
                for line in wanted:
                    text, calls = json.loads(line)
                    try:
                        failure = check_program(text, "program", calls, self.options)
                    except BaseException:
                        failure = {"kind": "harness", "text": traceback.format_exc()}
                    print(json.dumps({"event": "done", "failure": failure}), file=out)

        self.process, answers = fork_child(work)
        os.close(reader)
        self.lines = read_lines(self.process, answers, self.timeout)

    def close(self):
        if self.process is not None:
            os.close(self.writer)
            self.lines.close()
            self.process = None


def check_text(text, calls=CALLS, options=None, timeout=20.0):
    """check_program of one text in a forked child of its own."""
    checker = Checker(options, timeout)
    try:
        return checker.check(text, calls)
    finally:
        checker.close()
