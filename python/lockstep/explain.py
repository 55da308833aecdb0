"""`lockstep.explain`: what ran where, line by line, and why."""

import json
from collections import defaultdict

from lockstep._check import load_library
from lockstep.function import core_of

_C = load_library()


class Explanation:
    """What is known of a decorated function. `str()` for people, `to_dict()` and `to_json()` for programs."""

    def __init__(self, name: str, counters: dict, nodes: list, divergences: list, auto: dict):
        self.name = name
        self.auto = auto
        self.counters = counters
        self.divergences = divergences
        self.lines = _by_line(nodes)

    def to_dict(self) -> dict:
        """A plain dict of name, counters, lines (one dict for each source line) and divergences."""
        return {
            "name": self.name,
            "counters": self.counters,
            "lines": self.lines,
            "divergences": self.divergences,
            "auto": self.auto,
        }

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        c = self.counters
        share = 100 * c["graph_ops"] / c["ops"] if c["ops"] else 0.0
        text = [
            f"{self.name}: {c['calls']} calls ({c['traced_calls']} traced), {c['ops']} ops, {share:.1f} % in the graph",
            f"  {c['nodes']} nodes in {c['blocks']} blocks, {c['divergences']} divergences, {c['fetches']} fetches, "
            f"{c['waits']} waits ({c['wait_seconds']:.3f} s)",
        ]
        if self.auto["is_auto"] and self.auto["is_settled"]:
            text.append(
                f"  auto chose {self.auto['way']}: behind {1e3 * self.auto['behind_seconds']:.3f} ms, "
                f"inplace {1e3 * self.auto['inplace_seconds']:.3f} ms, "
                f"eager {1e3 * self.auto['eager_seconds']:.3f} ms (medians, measured {self.auto['measurements']} times)"
            )
        for reason, count in sorted(c["reasons"].items(), key=lambda item: -item[1]):
            text.append(f"  eager: {reason} x {count}: {_C.reasons()[reason]}")
        text.append("")
        text.append(f"  {'asked':>8} {'graph':>8} {'eager':>8} {'fetched':>8} {'waited ms':>10}  line")
        for line in self.lines:
            why = ", ".join(f"{name} x {count}" for name, count in line["reasons"].items())
            text.append(
                f"  {line['asked']:>8} {line['in_graph']:>8} {line['eager']:>8} {line['fetched']:>8} "
                f"{1e3 * line['wait_seconds']:>10.2f}  {line['where']}" + (f"  [{why}]" if why else "")
            )
        for d in self.divergences[-5:]:
            text.append(f"  call {d['call']} parted after {d['where']}:")
            text.append(f"    known way: {d['expected']}")
            text.append(f"    taken way: {d['found']}")
        return "\n".join(text)

    __repr__ = __str__


def _by_line(nodes: list) -> list:
    lines: dict = defaultdict(
        lambda: {"asked": 0, "in_graph": 0, "eager": 0, "fetched": 0, "wait_seconds": 0.0, "ops": {}, "reasons": {}}
    )
    for node in nodes:
        if not node["op"]:
            continue
        line = lines[node["where"]]
        for key in ("asked", "in_graph", "eager", "fetched", "wait_seconds"):
            line[key] += node[key]
        line["ops"][node["op"]] = line["ops"].get(node["op"], 0) + node["asked"]
        for reason, count in node["reasons"].items():
            line["reasons"][reason] = line["reasons"].get(reason, 0) + count
    return [{"where": where, **line} for where, line in lines.items()]


def explain(fn) -> Explanation:
    """Explains a decorated function, a decorated module or a session.

    Raises:
        Error: where it is none of these.
    """
    core = core_of(fn, "lockstep.explain")
    return Explanation(core.name, _C.counters(core), _C.nodes(core), _C.divergences(core), _C.auto_figures(core))
