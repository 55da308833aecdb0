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
from random_compare import first_difference, snapshot
from random_program import load, program_text

CALLS = 6
PYTHON_FOLDER = Path(__file__).resolve().parents[3] / "python"
if str(PYTHON_FOLDER) not in sys.path:
    sys.path.insert(0, str(PYTHON_FOLDER))


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


def run_call(module, state, step, call):
    """One call and its snapshot: result or exception, state, arguments, random states."""
    arguments = module.inputs(call)
    values = {"state": state, "arguments": list(arguments)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values["result"] = step(state, *arguments)
        except Exception as error:
            values["raised"] = raised(error, module.__file__)
            del error
        found = snapshot(values)
        module.between(state, call)
    return found


def run_eager(text, name, calls):
    module = load(text, name)
    state = module.start()
    return [run_call(module, state, module.step, call) for call in range(calls)]


def check_program(text, name="program", calls=CALLS, options=None, stats=None):
    """None, or what differs first between eager and lockstep, as a dict with `kind` and `text`."""
    import lockstep

    before = current()
    expected = run_eager(text, name, calls)
    restore(before)
    module = load(text, name)
    state = module.start()
    step = lockstep.function(
        module.step, **{"numerics": "strict", "when": "always", **(options or {})}
    )
    for call in range(calls):
        found = run_call(module, state, step, call)
        difference = first_difference(expected[call], found)
        if difference:
            kind = difference.split(" differs", 1)[0].split("[", 1)[0]
            return {"kind": kind, "text": f"call {call}: {difference}"}
    if stats is not None:
        for key, value in lockstep.stats(step).items():
            if isinstance(value, (int, float)):
                stats[key] = stats.get(key, 0) + value
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
    """Yields the child's JSON lines; at the end {"end": reason or None}; kills a silent child."""
    buffer = b""
    reason = None
    while True:
        ready, _, _ = select.select([reader], [], [], timeout)
        if not ready:
            os.kill(process, signal.SIGKILL)
            reason = f"hang: no progress for {timeout} s"
            break
        data = os.read(reader, 65536)
        if not data:
            break
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        yield from (json.loads(line) for line in lines)
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


def check_text(text, calls=CALLS, options=None, timeout=20.0):
    """check_program of one text in a forked child: None or the failure, crashes and hangs too."""

    def work(pipe):
        with os.fdopen(pipe, "w", buffering=1) as out:
            try:
                failure = check_program(text, "program", calls, options)
            except BaseException:
                failure = {"kind": "harness", "text": traceback.format_exc()}
            print(json.dumps({"event": "done", "failure": failure}), file=out)

    failure = None
    for line in read_lines(*fork_child(work), timeout):
        if line["event"] == "done":
            failure = line["failure"]
        elif line["reason"] and not failure:
            failure = {"kind": line["reason"].split(":")[0], "text": line["reason"]}
    return failure
