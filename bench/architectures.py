"""Trains architectures that others wrote, eagerly and in lockstep in turns; see README.md.

python bench/architectures.py                             all of them, about an hour and a half
python bench/architectures.py --only 'Wav2Vec2*' gcn      some, by pattern
python bench/architectures.py --only Dinov2* --profile    and where its time goes
python bench/architectures.py --full-size                 models as large as they are used

A step is forward, backward, clipping and AdamW. In one process the bits of six steps with
numerics="strict" are compared with eager's, and the losses of the default with those: the first
one, and all six beside eager whose parameters were moved by an ulp. There the gradients of the
default, when its kernels are compiled and chosen, and eager's are compared with those of a float64
twin. Then eager and when="auto", each in a process of its own, take turns.
"""

import argparse
import fnmatch
import json
import os
import random
import statistics
import sys
import time
import warnings
from pathlib import Path

from architecture_models import ARCHITECTURES, FULL_SIZE
from bench_report import number, paired, table, times_of
from bench_variants import environment
from gradient_errors import gradient_errors
from run import HERE, Alone, answer_of, machine, measure_alone, scratch_folder

STEPS_COMPARED = 6
MIN_STEPS = 10  # of a run, and of the warm-up
MIN_SLOW_STEPS = 3  # of a run, where a step takes more than a second
WARM_UP_SECONDS = {"eager": 2, "auto": 10}  # auto measures its ways meanwhile


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--full-size", action="store_true", help="of the large models instead")
    parser.add_argument("--runs", type=int, default=5, help="runs, of which medians are paired")
    parser.add_argument("--run-seconds", type=float, default=1.0, help="of one variant in one run")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one process")
    parser.add_argument("--profile", action="store_true", help="print lockstep.profile, too")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--name", default=time.strftime("architectures-%Y-%m-%d-%H%M%S"))
    parser.add_argument("--worker", choices=("compare", *WARM_UP_SECONDS), help=argparse.SUPPRESS)
    return parser.parse_args()


def seed(number):
    import numpy
    import torch

    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)


def loss_of(model, batch):
    found = model(**batch)
    loss = getattr(found, "loss", None)
    return (found[0] if loss is None else loss).sum()


class Training:
    """One copy of an architecture, its optimizer and its step."""

    def __init__(self, name, decorate=lambda step: step):
        import torch

        seed(0)
        self.model, self.create_batch = {**ARCHITECTURES, **FULL_SIZE}[name]()
        self.model.train()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

        def step(batch):
            optimizer.zero_grad()
            loss = loss_of(self.model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        self.step = decorate(step)
        seed(1)

    def nudge(self):
        """Moves all parameters up by an ulp."""
        import torch

        for parameter in self.model.parameters():
            parameter.data = torch.nextafter(parameter.data, torch.tensor(torch.inf))
        return self

    def losses(self, count):
        return [self.step(self.create_batch()) for _ in range(count)]


def bits(training):
    return [value.numpy().tobytes() for value in training.model.state_dict().values()]


def deviation(losses, others):
    return max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(losses, others, strict=True))


def compare(name):
    import lockstep

    eager = Training(name)
    losses = eager.losses(STEPS_COMPARED)
    strict = Training(name, lockstep.function(when="always", numerics="strict"))
    strict_losses = strict.losses(STEPS_COMPARED)
    found = Training(name, lockstep.function(when="always")).losses(STEPS_COMPARED)
    nudged = Training(name).nudge().losses(STEPS_COMPARED)
    result = {
        "parameters": sum(p.numel() for p in eager.model.parameters()),
        "strict_equal": losses == strict_losses and bits(eager) == bits(strict),
        "first_deviation": deviation(losses[:1], found[:1]),
        "deviation": deviation(losses, found),
        "deviation_by_ulp": deviation(losses, nudged),
    }
    again = Training(name)
    batch = again.create_batch()
    result["gradients"] = gradient_errors(again.model, batch, loss_of, lambda: seed(2))
    if not result["strict_equal"]:
        again = Training(name)
        repeats = again.losses(STEPS_COMPARED) == losses
        result["eager_repeats"] = repeats and bits(again) == bits(eager)
    return result


def timed(training):
    batch = training.create_batch()
    start = time.perf_counter()
    training.step(batch)
    return time.perf_counter() - start


def serve(arguments, name, variant):
    """What run.Alone asks for."""
    import lockstep

    decorate = (lambda step: step) if variant == "eager" else lockstep.function(when="auto")
    training, seconds = Training(name, decorate), []
    end = time.monotonic() + WARM_UP_SECONDS[variant]
    while time.monotonic() < end or len(seconds) < MIN_STEPS:
        seconds.append(timed(training))
    step_seconds = statistics.median(seconds[-MIN_STEPS:])
    least = MIN_STEPS if step_seconds < 1 else MIN_SLOW_STEPS
    steps = max(least, int(arguments.run_seconds / step_seconds))
    print(json.dumps({"steps": steps}), flush=True)
    for line in sys.stdin:
        seconds = [timed(training) for _ in range(json.loads(line)["steps"])]
        print(json.dumps({"median": statistics.median(seconds)}), flush=True)
    if variant == "eager":
        return {}
    explained = lockstep.explain(training.step)
    counters = explained.counters
    figures = {
        "ops": round(counters["ops"] / counters["calls"]),
        "reasons": counters["reasons"],
        "auto": explained.auto,
    }
    if arguments.profile:
        with lockstep.profile(training.step) as profile:
            training.losses(8)
        figures["profile"] = f"{profile}\n"
    return figures


def work(arguments):
    """One task on one architecture, in a process of its own. The last line is its answer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    (name,), task = arguments.only, arguments.worker
    print(json.dumps(compare(name) if task == "compare" else serve(arguments, name, task)))


def worker_command(arguments, name, task):
    command = [sys.executable, __file__, "--worker", task, "--only", name]
    return [*command, f"--run-seconds={arguments.run_seconds}", *["--profile"] * arguments.profile]


def measure(arguments, name):
    """All figures of an architecture, or {"error": why there are none}."""

    def start(variant):
        command = worker_command(arguments, name, variant)
        return Alone(command, environment(variant), arguments.limit)

    compared = answer_of(
        worker_command(arguments, name, "compare"), environment("auto"), arguments.limit
    )
    if "error" in compared:
        return compared
    alone = measure_alone(WARM_UP_SECONDS, start, arguments.runs)
    for answer in alone.values():
        if "error" in answer:
            return answer
    return {**compared, **alone["auto"]["variants"]["auto"], "runs": times_of(alone)}


def equality(result):
    if result["strict_equal"]:
        return "yes"
    return "no" if result["eager_repeats"] else "eager does not repeat"


def milliseconds(result, variant):
    return statistics.median(run["median"] for run in result["runs"][variant]) * 1e3


def ratio(result):
    return paired(result["runs"]["auto"], result["runs"]["eager"])


def row(name, result):
    head = [name, f"{result['parameters'] / 1e6:.1f}", result["ops"]]
    times = [f"{milliseconds(result, variant):.2f}" for variant in ("eager", "auto")]
    chosen = result["auto"]["way"] if result["auto"]["is_settled"] else "still measures"
    exactness = [equality(result)]
    for key in ("first_deviation", "deviation", "deviation_by_ulp"):
        exactness.append(f"{result[key]:.0e}")
    for numerics in ("default", "eager"):
        errors = result["gradients"]
        exactness.append(f"{errors[numerics]:.1e}" if errors else "no float64")
    reasons = ", ".join(result["reasons"]) or "-"
    return [*head, *times, number(ratio(result)), chosen, *exactness, reasons]


def markdown(about, results):
    measured = {name: r for name, r in results.items() if "error" not in r}
    heads = (
        "architecture | million parameters | ops a step | eager ms | auto ms | auto / eager "
        "| auto chose | strict: all bits | default: first loss within | six losses within "
        "| eager by an ulp within | default's gradients off by | eager's | reasons"
    )
    slowest_first = sorted(measured.items(), key=lambda item: ratio(item[1]), reverse=True)
    lines = ["# Architectures", ", ".join(f"{k} {v}" for k, v in about.items())]
    lines.append(table(heads.split(" | "), [row(*item) for item in slowest_first]))
    if measured:
        mean = statistics.geometric_mean(map(ratio, measured.values()))
        lines.append(f"Geometric mean of auto / eager: {mean:.3f}")
    failed = [(name, r["error"].replace("\n", " ")) for name, r in results.items() if "error" in r]
    if failed:
        lines.append(table(["not measured", "why"], failed))
    return "\n\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    if arguments.worker:
        return work(arguments)
    known = FULL_SIZE if arguments.full_size else ARCHITECTURES
    names = [n for n in known if any(fnmatch.fnmatch(n, p) for p in arguments.only)]
    if not names:
        sys.exit(f"no architecture matches {' '.join(arguments.only)}: {' '.join(known)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path, about, results = arguments.out / f"{arguments.name}.json", machine(), {}
    for place, name in enumerate(names, 1):
        with scratch_folder():
            result = results[name] = measure(arguments, name)
        cells = row(name, result) if "error" not in result else [name, result["error"]]
        print(f"[{place}/{len(names)}]", *cells, flush=True)
        print(result.pop("profile", ""), end="", flush=True)
        # Written after each: what was measured is kept if a later one fails.
        path.write_text(json.dumps({"machine": about, "architectures": results}, indent=1))
        path.with_suffix(".md").write_text(markdown(about, results))
    print(markdown(about, results))


if __name__ == "__main__":
    main()
