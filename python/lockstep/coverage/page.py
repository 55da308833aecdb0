"""One HTML page, complete in itself: tables per way, both side by side, and what to look at."""

from __future__ import annotations

import html
from typing import Any

from .cli_text import reproduce

_STYLE = """
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}
body{max-width:1200px;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:.5rem 0 1.5rem;font-size:14px;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;border-bottom:1px solid #8884;text-align:right;white-space:nowrap}
th:first-child,td:first-child,td.text{text-align:left}
td.text{white-space:normal}
td.bad{color:#c22;font-weight:600} td.good{color:#282}
code{font-size:13px} summary{cursor:pointer;font-weight:600;margin:.5rem 0}
.bar{display:inline-block;height:.7em;background:#48c;vertical-align:baseline}
"""
_BAD = ("wrong", "error", "crash", "timeout")
_STATUSES = ("equal", *_BAD, "skip")


def _e(value: Any) -> str:
    return html.escape(str(value))


def _row(cells: list[tuple[str, Any]]) -> str:
    return "<tr>" + "".join(f'<td class="{c}">{_e(v)}</td>' for c, v in cells) + "</tr>"


def _head(*names: str) -> str:
    return "<tr>" + "".join(f"<th>{_e(n)}</th>" for n in names) + "</tr>"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _source_table(s: dict[str, Any]) -> str:
    rows = [
        _head(
            "source",
            "cases",
            *_STATUSES,
            "median share",
            "≥ 99 %",
            "none in graph",
            "diverge late",
            "eager differs",
            "time / eager: p10",
            "median",
            "p90",
        )
    ]
    for name, row in [*s["sources"].items(), ("all", s["all"])]:
        cells: list[tuple[str, Any]] = [("", name), ("", row["cases"])]
        for status in _STATUSES:
            n = row["counts"][status]
            cells.append(("bad" if n and status in _BAD else "", n))
        cells += [("", _percent(row["share"].get(k))) for k in ("median", "at_least_99", "none")]
        cells += [("bad" if row["late_divergences"] else "", row["late_divergences"])]
        cells.append(("", row["self_differs"]))
        cells += [("", row["time_against_eager"].get(k, "–")) for k in ("p10", "median", "p90")]
        rows.append(_row(cells))
    return "<table>" + "".join(rows) + "</table>"


def _details(title: str, body: str) -> str:
    return f"<details><summary>{_e(title)}</summary>{body}</details>" if body else ""


def _failures(s: dict[str, Any], way: str) -> str:
    rows = []
    for r in s["failures"]:
        for f in r["failures"][:2]:
            what = " · ".join(f["detail"][:2])[:400]
            command = reproduce(r["case"], f["program"], way)
            rows.append(
                f'<tr><td class="text">{_e(r["case"])}</td><td class="bad">{_e(f["status"])}</td>'
                f'<td class="text">{_e(what)}<br><code>{_e(command)}</code></td></tr>'
            )
    return f"<table>{_head('case', 'status', 'what')}{''.join(rows)}</table>" if rows else ""


def _reasons(s: dict[str, Any]) -> str:
    rows = [
        _row([("", r["reason"]), ("", r["count"]), ("", r["cases"]), ("text", r["example"])])
        for r in s["reasons"]
    ]
    head = _head("reason", "ops", "cases", "example")
    return f"<table>{head}{''.join(rows)}</table>" if rows else ""


def _distribution(s: dict[str, Any]) -> str:
    deciles = s["all"]["share"].get("deciles")
    if not deciles:
        return ""
    rows = [
        f"<tr><td>{10 * i} %</td><td>{_percent(d)}</td>"
        f'<td class="text"><span class="bar" style="width:{200 * d:.0f}px"></span></td></tr>'
        for i, d in enumerate(deciles)
    ]
    return f"<table>{_head('cases up to', 'share', '')}{''.join(rows)}</table>"


def _worst(s: dict[str, Any]) -> str:
    rows = [
        _row(
            [
                ("text", r["case"]),
                ("", _percent(r["share"])),
                ("text", ", ".join(f"{k} {n}" for k, n in r["reasons"].items())),
            ]
        )
        for r in s["worst_shares"][:200]
    ]
    head = _head("case", "share", "reasons")
    return f"<table>{head}{''.join(rows)}</table>" if rows else ""


def _skips(s: dict[str, Any]) -> str:
    rows = [
        _row([("", source), ("", n), ("text", reason)])
        for source, row in s["sources"].items()
        for reason, n in row["skips"].items()
    ]
    return f"<table>{_head('source', 'programs', 'reason')}{''.join(rows)}</table>" if rows else ""


def _self_differs(s: dict[str, Any]) -> str:
    rows = [_row([("text", k), ("text", "; ".join(v))]) for k, v in s["self_differs"].items()]
    return f"<table>{_head('case', 'where')}{''.join(rows)}</table>" if rows else ""


def _side_by_side(summaries: dict[str, dict[str, Any]]) -> str:
    if len(summaries) < 2:
        return ""
    sources = list(dict.fromkeys(n for s in summaries.values() for n in s["sources"]))
    rows = [
        _head(
            "source",
            *(
                f"{w}: {k}"
                for w in summaries
                for k in ("cases", "equal", "wrong", "error", "other", "breaks")
            ),
        )
    ]
    for name in sources:
        cells: list[tuple[str, Any]] = [("", name)]
        for s in summaries.values():
            row = s["sources"].get(name)
            if row is None:
                cells += [("", "–")] * 6
                continue
            c = row["counts"]
            other = c["crash"] + c["timeout"] + c["skip"]
            values = (row["cases"], c["equal"], c["wrong"], c["error"], other, row["graph_breaks"])
            cells += [("", v) for v in values]
        rows.append(_row(cells))
    return "<h2>Side by side</h2><table>" + "".join(rows) + "</table>"


def html_page(summaries: dict[str, dict[str, Any]]) -> str:
    """The page as text; it loads nothing."""
    parts = [
        f"<!doctype html><meta charset=utf-8><title>Lockstep coverage</title>"
        f"<style>{_STYLE}</style><h1>Lockstep coverage</h1>"
    ]
    for way, s in summaries.items():
        h = s["header"]
        parts.append(f"<h2>{_e(way)} against eager</h2>")
        parts.append(
            f"<p>PyTorch {_e(h.get('torch'))}, Python {_e(h.get('python'))}, "
            f"{_e(h.get('started'))}, {_e(s['all']['cases'])} cases</p>"
        )
        parts.append(_source_table(s))
        parts.append(_details("Failures", _failures(s, way)))
        parts.append(_details("Why ops ran eagerly", _reasons(s)))
        parts.append(
            _details("Share of ops in the graph, by tenths of the cases", _distribution(s))
        )
        parts.append(_details("Cases below 99 %, worst first", _worst(s)))
        late = ", ".join(s["late_divergences"])
        parts.append(
            _details(
                "Cases that diverge after the second call", f"<p>{_e(late)}</p>" if late else ""
            )
        )
        parts.append(_details("Cases in which eager differs from itself", _self_differs(s)))
        parts.append(_details("Skipped programs", _skips(s)))
    parts.append(_side_by_side(summaries))
    return "\n".join(parts) + "\n"
