"""Trains architectures that others wrote, eagerly and in lockstep in turns; see README.md.

python bench/architectures.py                             all of them, about an hour
python bench/architectures.py --only 'Wav2Vec2*' gcn      some, by pattern
python bench/architectures.py --only Dinov2* --profile    and where its time goes

A step is forward, backward, clipping and AdamW; each architecture has a process of its own. The
bits of six steps with numerics="strict" are compared with eager's, and the losses of the default
with those: the first one, and all six beside eager whose parameters were moved by an ulp. Then
copies of the model take turns for some seconds: eager, behind the leading thread, and in place.
What auto would take is the faster of the two.
"""

import argparse
import fnmatch
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from architecture_models import ARCHITECTURES
from bench_report import number, table
from run import HERE, last_words, machine

STEPS_COMPARED = 6
WAYS = {
    "behind": {"when": "always", "runner": "behind"},
    "inplace": {"when": "always", "runner": "inplace"},
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--seconds", type=float, default=12, help="in which the ways take turns")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one process")
    parser.add_argument("--profile", action="store_true", help="print lockstep.profile, too")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--name", default=time.strftime("architectures-%Y-%m-%d-%H%M%S"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def seed(number):
    import numpy
    import torch

    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)


class Training:
    """One copy of an architecture, its optimizer and its step."""

    def __init__(self, name, decorate=lambda step: step):
        import torch

        seed(0)
        self.model, self.create_batch = ARCHITECTURES[name]()
        self.model.train()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

        def step(batch):
            optimizer.zero_grad()
            found = self.model(**batch)
            loss = getattr(found, "loss", None)
            loss = (found[0] if loss is None else loss).sum()
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


def measure_turns(trainings, seconds):
    """Milliseconds of a step of each, the median of the last third."""
    times = {way: [] for way in trainings}
    began = time.monotonic()
    while time.monotonic() - began < seconds or len(times["eager"]) < 12:
        batch = trainings["eager"].create_batch()
        for way, training in trainings.items():
            start = time.perf_counter()
            training.step(batch)
            times[way].append(time.perf_counter() - start)
    return {w: statistics.median(t[len(t) * 2 // 3 :]) * 1e3 for w, t in times.items()}


def work(arguments):
    """Of one architecture, in a process of its own: figures as JSON, in the last line."""
    import lockstep

    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    name = arguments.worker
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
    if not result["strict_equal"]:
        again = Training(name)
        result["eager_repeats"] = again.losses(STEPS_COMPARED) == losses and bits(eager) == bits(
            again
        )
    ways = {w: Training(name, lockstep.function(**how)) for w, how in WAYS.items()}
    result["ms"] = measure_turns({"eager": eager, **ways}, arguments.seconds)
    stats = lockstep.stats(ways["behind"].step)
    result["ops"] = round(stats["ops"] / stats["calls"])
    result["reasons"] = stats["reasons"]
    if arguments.profile:
        best = min(WAYS, key=result["ms"].get)
        with lockstep.profile(ways[best].step) as profile:
            ways[best].losses(8)
        result["profile"] = f"{best}\n{profile}"
    print(json.dumps(result, default=str))


def ask(arguments, name):
    """The worker's figures, or {"error": its last lines}."""
    command = [sys.executable, __file__, "--worker", name, "--seconds", str(arguments.seconds)]
    command += ["--profile"] * arguments.profile
    with tempfile.TemporaryDirectory(prefix="bench-lockstep-") as cache:
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "LOCKSTEP_CACHE": cache},
                capture_output=True,
                text=True,
                timeout=arguments.limit,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no end after {arguments.limit:.0f} s"}
    if done.returncode:
        return {"error": f"status {done.returncode}: {last_words(done.stderr)[-200:]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def equality(result):
    if result["strict_equal"]:
        return "yes"
    return "no" if result["eager_repeats"] else "eager does not repeat"


def row(name, result):
    ms = result["ms"]
    ratios = [ms[way] / ms["eager"] for way in WAYS]
    reasons = ", ".join(result["reasons"]) or "-"
    figures = [f"{ms['eager']:.1f}", *(number(ratio, 2) for ratio in (*ratios, min(ratios)))]
    exactness = [equality(result)]
    exactness += [
        f"{result[key]:.0e}" for key in ("first_deviation", "deviation", "deviation_by_ulp")
    ]
    return [name, f"{result['parameters'] / 1e6:.1f}", result["ops"], *figures, *exactness, reasons]


def markdown(about, results):
    measured = {name: r for name, r in results.items() if "error" not in r}
    heads = (
        "architecture | million parameters | ops a step | eager ms | behind / eager "
        "| in place / eager | best / eager | strict: all bits | default: first loss within "
        "| six losses within | eager by an ulp within | reasons"
    )
    rows = [row(name, result) for name, result in measured.items()]
    rows.sort(key=lambda cells: float(cells[6]), reverse=True)
    lines = ["# Architectures", ", ".join(f"{k} {v}" for k, v in about.items())]
    lines.append(table(heads.split(" | "), rows))
    if measured:
        best = [min(r["ms"][way] for way in WAYS) / r["ms"]["eager"] for r in measured.values()]
        lines.append(f"Geometric mean of best / eager: {statistics.geometric_mean(best):.3f}")
    failed = [(name, r["error"].replace("\n", " ")) for name, r in results.items() if "error" in r]
    if failed:
        lines.append(table(["not measured", "why"], failed))
    return "\n\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    if arguments.worker:
        return work(arguments)
    names = [n for n in ARCHITECTURES if any(fnmatch.fnmatch(n, p) for p in arguments.only)]
    if not names:
        sys.exit(f"no architecture matches {' '.join(arguments.only)}: {' '.join(ARCHITECTURES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path, about, results = arguments.out / f"{arguments.name}.json", machine(), {}
    for place, name in enumerate(names, 1):
        result = results[name] = ask(arguments, name)
        cells = row(name, result) if "error" not in result else [name, result["error"]]
        print(f"[{place}/{len(names)}]", *cells, flush=True)
        print(result.pop("profile", ""), end="", flush=True)
        # Written after each: what was measured is kept if a later one fails.
        path.write_text(json.dumps({"machine": about, "architectures": results}, indent=1))
        path.with_suffix(".md").write_text(markdown(about, results))
    print(markdown(about, results))


if __name__ == "__main__":
    main()
