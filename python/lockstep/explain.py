"""`lockstep.explain`: what ran where, line by line, and why."""

import json

from lockstep._check import load_library
from lockstep.function import core_of
from lockstep.knobs import is_disabled
from lockstep.places import describe_line, shorten, split_place
from lockstep.session import session

_C = load_library()

_COUNTS = ("asked", "in_graph", "eager", "fetched")
_TIMES = ("wait_seconds", "graph_seconds", "eager_seconds")
# Reasons that count calls, not ops.
_NOT_RUN = ("slower", "switched_off", "function_busy", "small_stack")
_SHOWN_DIVERGENCES = 5
_SHOWN_OPS = 3  # names of ops behind a reason
_KEYS = (
    "name", "is_session", "is_disabled", "calls", "shares", "counters", "lines", "divergences",
    "auto",
)  # fmt: skip


class Explanation:
    """What is known of a function: `str()` for people, `to_dict()` and `to_json()` for programs.

    Attributes:
        name: of the function.
        counters: what `lockstep.stats` gives.
        is_session: whether it is a session, which is one call that goes on.
        is_disabled: whether LOCKSTEP_DISABLE is set and nothing was counted.
        calls: dict of `traced` (at least in part), `coexecuted` and `eager` (as a whole) calls.
        shares: dict of what the graph ran: `ops` by count and `kernel_time` by time, 0 to 1.
        lines: one dict for each source line that asked for ops, by file and line: `file`, `line`,
            `function`, `where`, `source`, `asked`, `in_graph`, `eager`, `fetched` (counts),
            `wait_seconds`, `graph_seconds`, `eager_seconds` (of kernels), `ops` and `reasons`
            (dicts from name to count), `eager_ops` (reason -> op -> count).
        divergences: the latest ones, each with `call`, `where`, `expected` and `found`.
        auto: what `when="auto"` chose (`way`) and on what figures; `is_auto`, `is_settled`.
    """

    def __init__(
        self,
        name: str,
        counters: dict,
        nodes: list,
        divergences: list,
        auto: dict,
        is_session: bool = False,
    ):
        self.name = name
        self.is_session = is_session
        self.is_disabled = is_disabled() and not counters["calls"] and not counters["ops"]
        self.auto = auto
        self.counters = counters
        self.divergences = divergences
        self.lines = _by_line(nodes)
        whole = count_eager_calls(counters)
        traced = counters["traced_calls"]
        coexecuted = max(0, counters["calls"] - traced - whole)
        self.calls = {"traced": traced, "coexecuted": coexecuted, "eager": whole}
        graph = sum(line["graph_seconds"] for line in self.lines)
        eager = sum(line["eager_seconds"] for line in self.lines)
        self.shares = {
            "ops": _share(counters["graph_ops"], counters["ops"]),
            "kernel_time": _share(graph, graph + eager),
        }

    def to_dict(self) -> dict:
        """All attributes as a plain dict that JSON can hold."""
        return {key: getattr(self, key) for key in _KEYS}

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        blank = [""] if self.lines else []
        text = [*self._head(), *self._auto_text(), *self._reasons_text(), *blank]
        return "\n".join([*text, *self._lines_text(), *self._divergences_text()])

    __repr__ = __str__

    def _head(self) -> list[str]:
        c = self.counters
        within = (
            "  no ops of its own: within a call of another decorated function, they count there"
        )
        is_without = c["calls"] and not c["ops"] and not any(c["reasons"].values())
        return [
            f"{self.name}: {self._ops_text() if self.is_session else self._calls_text()}",
            f"  the graph ran {100 * self.shares['ops']:.1f} % of {c['ops']} ops, "
            f"{100 * self.shares['kernel_time']:.1f} % of kernel time",
            f"  {c['nodes']} nodes in {c['blocks']} blocks, {c['divergences']} divergences, "
            f"{c['feeds']} feeds, {c['fetches']} fetches, "
            f"{c['waits']} waits ({c['wait_seconds']:.3f} s)",
            *([within] if is_without and not self.is_session else []),
        ]

    def _calls_text(self) -> str:
        calls = self.calls
        return (
            f"{self.counters['calls']} calls: {calls['traced']} traced, "
            f"{calls['coexecuted']} co-executed, {calls['eager']} eager"
        )

    def _ops_text(self) -> str:
        """For sessions, whose one call is traced and co-executed at once."""
        c = self.counters
        traced = c["reasons"].get("tracing", 0)
        return (
            f"{c['ops']} ops: {traced} traced, {c['graph_ops']} co-executed, "
            f"{max(0, c['eager_ops'] - traced)} eager"
        )

    def _auto_text(self) -> list[str]:
        auto = self.auto
        if not auto["is_auto"]:
            return []
        if not auto["is_settled"]:
            return [f"  auto has not measured enough calls yet; the next one: {auto['next_way']}"]
        if auto["is_pointless"]:
            return [
                "  auto runs it eagerly: most ops do so by themselves (reasons below), "
                "and those that the graph could run take next to no time"
            ]
        if auto["measurements"] == 0:
            return [f"  auto began with {auto['way']}, which a function like this one chose before"]
        figures = ", ".join(
            f"{name.removesuffix('_seconds')} {1e3 * value:.3f} ms"
            for name, value in auto.items()
            if name.endswith("_seconds") and value
        )
        count = auto["measurements"]
        times = f"of a call, measured {'once' if count == 1 else f'{count} times'}"
        if auto["rests_on_gaps"]:
            times += "; the time between calls decided"
        return [f"  auto chose {auto['way']}: {figures} ({times})"]

    def _reasons_text(self) -> list[str]:
        if self.is_disabled:
            return ["  eager: switched_off: LOCKSTEP_DISABLE is set, so that nothing is counted"]
        sentences = _C.reasons() | {"slower": self._slower_text()}
        reasons = sorted(self.counters["reasons"].items(), key=lambda item: -item[1])
        return [f"  eager: {reason} x {count}: {sentences[reason]}" for reason, count in reasons]

    def _slower_text(self) -> str:
        """auto also runs calls eagerly to know how fast that is; both count as `slower`."""
        auto = self.auto
        if not auto["is_settled"]:
            return "run eagerly to measure, auto has not chosen yet"
        if auto["is_pointless"]:
            return "auto has found nothing to gain by co-execution"
        if auto["measurements"] <= 1 and auto["way"] != "eager":
            return "run eagerly to measure, co-execution was faster"
        return f"{_C.reasons()['slower']}, or the call was run eagerly to measure"

    def _lines_text(self) -> list[str]:
        if not self.lines:
            return []
        heads = f"{'asked':>7} {'graph':>7} {'eager':>7} {'fetched':>7}"
        text = [f"  {heads} {'kernels ms':>10} {'waited ms':>9}  line"]
        for line in self.lines:
            why = ", ".join(_reason_text(line, reason) for reason in line["reasons"])
            counts = " ".join(f"{line[key]:>7}" for key in _COUNTS)
            kernels = 1e3 * (line["graph_seconds"] + line["eager_seconds"])
            times = f"{kernels:>10.2f} {1e3 * line['wait_seconds']:>9.2f}"
            place = describe_line(line)
            text.append(f"  {counts} {times}  {place}" + (f"  [{why}]" if why else ""))
        return text

    def _divergences_text(self) -> list[str]:
        text = []
        for d in self.divergences[-_SHOWN_DIVERGENCES:]:
            text += [
                f"  call {d['call']} parted after {shorten(d['where'])}",
                f"    known way: {shorten(d['expected']) or 'none'}",
                f"    taken way: {shorten(d['found'])}",
            ]
        return text


def _reason_text(line: dict, reason: str) -> str:
    """A reason of a line, how often, and the ops behind it where they say more than the line."""
    text = f"{reason} x {line['reasons'][reason]}"
    ops = sorted(line["eager_ops"].get(reason, ()))
    if reason == "tracing" or not ops:
        return text
    more = [f"{len(ops) - _SHOWN_OPS} more"] if len(ops) > _SHOWN_OPS else []
    return f"{text} ({', '.join([*ops[:_SHOWN_OPS], *more])})"


def count_eager_calls(counters: dict) -> int:
    """How many of the calls that `lockstep.stats` counts ran eagerly as a whole."""
    return sum(counters["reasons"].get(reason, 0) for reason in _NOT_RUN)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _new_line(where: str) -> dict:
    return {
        **split_place(where),
        **dict.fromkeys(_COUNTS, 0),
        **dict.fromkeys(_TIMES, 0.0),
        "ops": {},
        "reasons": {},
        "eager_ops": {},
    }


def _by_line(nodes: list) -> list:
    lines: dict = {}
    for node in nodes:
        if not node["op"] or not node["asked"]:
            continue
        where = node["where"]
        line = lines[where] = lines.get(where) or _new_line(where)
        for key in _COUNTS + _TIMES:
            line[key] += node[key]
        line["ops"][node["op"]] = line["ops"].get(node["op"], 0) + node["asked"]
        for reason, count in node["reasons"].items():
            line["reasons"][reason] = line["reasons"].get(reason, 0) + count
            ops = line["eager_ops"].setdefault(reason, {})
            ops[node["op"]] = ops.get(node["op"], 0) + count
    return sorted(lines.values(), key=lambda line: (line["file"], line["line"], line["function"]))


def explain(fn) -> Explanation:
    """Explains what happened since a function was decorated, or since `lockstep.reset_stats`.

    Args:
        fn: a decorated function, a decorated module or a session.

    Returns:
        An Explanation; `print` it, or see its attributes.

    Raises:
        Error: where `fn` is none of these.
    """
    core = core_of(fn, "lockstep.explain")
    return Explanation(
        core.name or getattr(fn, "__qualname__", None) or type(fn).__name__,
        _C.counters(core),
        _C.nodes(core),
        _C.divergences(core),
        _C.auto_figures(core),
        is_session=isinstance(fn, session),
    )
