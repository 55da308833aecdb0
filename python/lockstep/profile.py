"""`lockstep.profile`: what both threads did and when."""

import json
import threading
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from lockstep._check import load_library
from lockstep.errors import Error
from lockstep.measured_block import MeasuredBlock
from lockstep.places import describe_line, shorten, split_place

_C = load_library()

_ASKED = ("ask", "fetch")
_COMPUTED = ("kernel", "native", "member")  # a group is its members
_TOP = ("call", "eager call", *_ASKED)  # kinds that only the leading thread has
_SHOWN_ROWS = 25


class Span(NamedTuple):
    """A time on a thread.

    Attributes:
        thread: its name.
        kind: `call` or `eager call` of the function; `ask` of an op, or `fetch`, whose value Python
            goes on with; `wait` of Python for the runner; `kernel`, `group` of ops fused into one,
            and `member`, an op's equal part of its group; `native`, a kernel that ran at once
            where Python asked for it; `compile` of a fused kernel.
        begin: microseconds since the first span.
        duration: microseconds.
        op: schema name of the op; empty for calls and compilations.
        where: `file:line in function` of the line that asked; empty where no line did.
    """

    thread: str
    kind: str
    begin: float
    duration: float
    op: str
    where: str


class profile(MeasuredBlock):
    """Records what the calls of a function do while the `with` block runs.

        with lockstep.profile(step) as p:
            for batch in batches:
                step(batch)
        print(p)
        p.save("step.html")

    Recording takes some 0.1 us a span on the thread that it is about.

    Args:
        fn: a decorated function, a decorated module or a session.

    Attributes:
        spans: list of Span by thread, in the order in which they ended; what other functions and
            sessions did meanwhile is left out.
        dropped: how many spans found no room (a thread keeps about a million).

    Raises:
        Error: where `fn` is none of these, or where another profile is open.
    """

    _tool = "lockstep.profile"
    _kind = "profile_open"
    _is_open = "another profile is open: close it first, since there is one timeline"
    _open = threading.Lock()

    def __init__(self, fn):
        super().__init__(fn)
        self.spans: list[Span] = []
        self.dropped = 0

    def _begin(self):
        _C.start_timeline()

    def _end(self):
        return _C.stop_timeline(self._core)

    def _keep(self, spans, threads, dropped):
        self.dropped = dropped
        leading = {span[0] for span in spans if span[1] in _TOP}
        names = [
            "leading thread" if number in leading else name for number, name in enumerate(threads)
        ]
        self.spans = [Span(names[number], *rest) for number, *rest in spans]

    def by_op(self) -> list[dict]:
        """A row for each op, the longest kernels first.

        Returns:
            dicts of `op`, `asked` (count), `ask_ms` (on the leading thread, with what ran there),
            `kernels` (count), `fused` (how many of them in groups), `kernel_ms` and `share` of all
            kernels' time, 0 to 1.
        """
        return self._rows(lambda span: span.op, lambda op: {"op": op})

    def by_line(self) -> list[dict]:
        """A row for each source line, the longest kernels first.

        Returns:
            dicts as those of `by_op`, with `waited_ms`, and `where`, `file`, `line`, `function` and
            `source` in place of `op`.
        """
        return self._rows(lambda span: span.where, split_place)

    def _rows(self, key_of, head_of) -> list[dict]:
        rows: dict[str, dict] = {}
        for span in self.spans:
            key = key_of(span)
            if not key or span.kind == "group":
                continue
            if key not in rows:
                counts = dict.fromkeys(("asked", "kernels", "fused"), 0)
                times = dict.fromkeys(("ask_ms", "waited_ms", "kernel_ms"), 0.0)
                rows[key] = {**head_of(key), **counts, **times}
            _count(rows[key], span)
        whole = sum(row["kernel_ms"] for row in rows.values())
        for row in rows.values():
            row["share"] = row["kernel_ms"] / whole if whole else 0.0
        return sorted(rows.values(), key=lambda row: -row["kernel_ms"])

    def totals(self) -> dict:
        """Milliseconds by kind of span, less what spans of the same thread inside of them took."""
        totals: dict[str, float] = {}
        for kind, duration in _own_times(self.spans):
            totals[kind] = totals.get(kind, 0.0) + duration / 1e3
        return totals

    def to_chrome(self) -> dict:
        """The timeline as a dict in Chrome's trace event format, for Perfetto and its like."""
        threads = {name: number for number, name in enumerate(self._threads())}
        events: list[dict] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}}
            for name, tid in threads.items()
        ]
        for span in self.spans:
            event = {
                "ph": "X",
                "name": span.op or span.kind,
                "cat": span.kind,
                "ts": round(span.begin, 3),
                "dur": round(span.duration, 3),
                "pid": 0,
                "tid": threads[span.thread],
            }
            events.append(event | ({"args": {"where": span.where}} if span.where else {}))
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save(self, path) -> None:
        """Writes the timeline.

        Args:
            path: of the file; `.json` gives Chrome's trace format, `.html` one page that needs
                nothing else.

        Raises:
            Error: for another suffix.
        """
        suffix = Path(path).suffix
        if suffix == ".json":
            text = json.dumps(self.to_chrome())
        elif suffix == ".html":
            text = self._page()
        else:
            message = f"{str(path)!r} ends in neither .json nor .html: give it one of these"
            raise Error("unknown_suffix", "lockstep.profile", message)
        Path(path).write_text(text, encoding="utf-8")

    def _page(self) -> str:
        names = sorted({span.op or span.kind for span in self.spans})
        places = sorted({span.where for span in self.spans})
        kinds = sorted({span.kind for span in self.spans})
        threads = self._threads()
        index = [{name: i for i, name in enumerate(all)} for all in (threads, kinds, names, places)]
        data = {
            "title": self.name,
            "head": self._head(),
            "threads": threads,
            "kinds": kinds,
            "names": names,
            "places": [shorten(place) for place in places],
            "spans": [
                [
                    index[0][span.thread],
                    index[1][span.kind],
                    index[2][span.op or span.kind],
                    index[3][span.where],
                    round(span.begin, 2),
                    round(span.duration, 2),
                ]
                for span in self.spans
            ],
            "ops": self.by_op(),
            "lines": [row | {"where": shorten(row["where"])} for row in self.by_line()],
        }
        page = resources.files("lockstep").joinpath("profile_page.html").read_text(encoding="utf-8")
        return page.replace("__DATA__", json.dumps(data).replace("</", "<\\/"))

    def _threads(self) -> list[str]:
        """The leading thread first."""
        names = dict.fromkeys(span.thread for span in self.spans)
        return sorted(names, key=lambda name: (name != "leading thread", name))

    def _head(self) -> list[str]:
        calls = [span for span in self.spans if span.kind in ("call", "eager call")]
        eager = sum(span.kind == "eager call" for span in calls)
        t = self.totals()
        kernels = sum(t.get(kind, 0.0) for kind in ("kernel", "group", "native"))
        groups = sum(span.kind == "group" for span in self.spans)
        members = sum(span.kind == "member" for span in self.spans)
        asked = sum(span.kind in _ASKED for span in self.spans)
        head = [
            f"{self.name}: {len(calls)} calls ({eager} eager) in "
            f"{sum(span.duration for span in calls) / 1e3:.2f} ms",
            f"  asked for {asked} ops in {t.get('ask', 0.0) + t.get('fetch', 0.0):.2f} ms, waited "
            f"{t.get('wait', 0.0):.2f} ms, Python and autograd {t.get('call', 0.0):.2f} ms",
            f"  kernels {kernels:.2f} ms, of it {t.get('group', 0.0):.2f} ms in {groups} groups of "
            f"{members} ops; compiling {t.get('compile', 0.0):.2f} ms",
        ]
        if self.dropped:
            head.append(f"  {self.dropped} spans found no room: profile fewer calls")
        return head

    def __str__(self) -> str:
        text = [*self._head(), "", *_table("op", ((row["op"], row) for row in self.by_op()))]
        lines = ((describe_line(row), row) for row in self.by_line())
        return "\n".join([*text, "", *_table("line", lines)])


def _count(row: dict, span: Span) -> None:
    if span.kind in _ASKED:
        row["asked"] += 1
        row["ask_ms"] += span.duration / 1e3
    elif span.kind == "wait":
        row["waited_ms"] += span.duration / 1e3
    elif span.kind in _COMPUTED:
        row["kernels"] += 1
        row["fused"] += span.kind == "member"
        row["kernel_ms"] += span.duration / 1e3


def _own_times(spans: list[Span]) -> Iterable[tuple[str, float]]:
    """(kind, microseconds) of each span, less the spans of its thread that lie inside of it."""
    order = sorted(
        (span for span in spans if span.kind != "member"),
        key=lambda span: (span.thread, span.begin, -span.duration),
    )
    stack: list[list] = []  # thread, end, kind, own time
    for span in order:
        while stack and (stack[-1][0] != span.thread or stack[-1][1] <= span.begin):
            yield tuple(stack.pop()[2:])
        if stack:
            stack[-1][3] -= span.duration
        stack.append([span.thread, span.begin + span.duration, span.kind, span.duration])
    while stack:
        yield tuple(stack.pop()[2:])


def _table(what: str, rows: Iterable[tuple[str, dict]]) -> list[str]:
    rows = list(rows)
    heads = f"{'asked':>7} {'ask ms':>9} {'waited ms':>9} {'kernels':>7} {'fused':>6}"
    text = [f"  {heads} {'kernel ms':>10} {'share':>6}  {what}"]
    for name, row in rows[:_SHOWN_ROWS]:
        text.append(
            f"  {row['asked']:>7} {row['ask_ms']:>9.2f} {row['waited_ms']:>9.2f} "
            f"{row['kernels']:>7} {row['fused']:>6} {row['kernel_ms']:>10.2f} "
            f"{100 * row['share']:>5.1f}%  {name}"
        )
    if len(rows) > _SHOWN_ROWS:
        text.append(f"  and {len(rows) - _SHOWN_ROWS} more")
    return text
