"""From the journals to what people read: JSON (compressed), a Markdown table, one HTML page."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from .case import BadInput
from .journal import read_journal

STATUSES = ("equal", "wrong", "error", "crash", "timeout", "skip")
_LIST_LIMIT = 40

Results = dict[str, dict[str, Any]]


def share_of(result: dict[str, Any]) -> float | None:
    """Part of the ops from the third call on that the graph ran; None where nothing counts.

    Only programs on dense CPU tensors count; a case that failed has a share of 0.
    """
    if result["status"] in ("crash", "timeout", "error"):
        return 0.0
    ops = result.get("dense_ops", 0)
    return result.get("dense_graph_ops", 0) / ops if ops else None


def _shares(results: list[dict[str, Any]]) -> dict[str, Any]:
    shares = sorted(s for r in results if (s := share_of(r)) is not None)
    if not shares:
        return {"cases": 0}
    return {
        "cases": len(shares),
        "median": statistics.median(shares),
        "at_least_99": sum(s >= 0.99 for s in shares) / len(shares),
        "none": sum(s == 0 for s in shares) / len(shares),
        "deciles": [shares[min(len(shares) - 1, len(shares) * i // 10)] for i in range(11)],
    }


def _reasons(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for r in results:
        for reason, count in r.get("reasons", {}).items():
            counts[reason] += count
            cases[reason] += 1
            where = r.get("reason_examples", {}).get(reason, "")
            examples.setdefault(reason, f"{r['case']} {where}".strip())
    return [
        {"reason": k, "count": n, "cases": cases[k], "example": examples[k]}
        for k, n in counts.most_common()
    ]


def _times(results: list[dict[str, Any]]) -> dict[str, float]:
    ratios = sorted(r["way_s"] / r["eager_s"] for r in results if r.get("eager_s", 0) > 0)
    if not ratios:
        return {}
    picks = {"p10": 0.1, "median": 0.5, "p90": 0.9}
    last = len(ratios) - 1
    return {k: round(ratios[min(last, int(len(ratios) * q))], 3) for k, q in picks.items()}


def _source_summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    counts = Counter(r["status"] for r in results)
    programs: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for r in results:
        programs.update(r["counts"])
        skips.update(r.get("skips", {}))
    return {
        "cases": len(results),
        "counts": {s: counts[s] for s in STATUSES},
        "programs": {s: programs[s] for s in STATUSES},
        "share": _shares(results),
        "late_divergences": sum(bool(r.get("late_divergences")) for r in results),
        "self_differs": sum(bool(r.get("self_differs")) for r in results),
        "time_against_eager": _times(results),
        "graph_breaks": sum(r.get("graph_breaks", 0) for r in results),
        "skips": dict(skips.most_common()),
    }


def summarize_way(header: dict[str, Any], results: Results) -> dict[str, Any]:
    """Everything that the reports say about one way of running."""
    by_source: dict[str, list[dict[str, Any]]] = {}
    for r in results.values():
        by_source.setdefault(r["case"].split("/", 1)[0], []).append(r)
    everything = list(results.values())
    return {
        "header": header,
        "sources": {s: _source_summary(rs) for s, rs in by_source.items()},
        "all": _source_summary(everything),
        "reasons": _reasons(everything),
        "failures": [r for r in everything if r.get("failures")],
        "worst_shares": _worst(everything),
        "late_divergences": [r["case"] for r in everything if r.get("late_divergences")],
        "self_differs": {
            r["case"]: r["self_differs_in"] for r in everything if "self_differs" in r
        },
        "slowest": _slowest(everything),
    }


def _worst(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    low = [(s, r) for r in results if (s := share_of(r)) is not None and s < 0.99]
    low.sort(key=lambda pair: (pair[0], pair[1]["case"]))
    return [
        {"case": r["case"], "share": round(s, 4), "reasons": r.get("reasons", {})} for s, r in low
    ]


def _slowest(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = [r for r in results if r.get("eager_s", 0) > 1e-3]
    timed.sort(key=lambda r: -r["way_s"] / r["eager_s"])
    return [{"case": r["case"], "eager_s": r["eager_s"], "way_s": r["way_s"]} for r in timed[:20]]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def markdown(summaries: dict[str, dict[str, Any]]) -> str:
    """The table of each way, and below it what failed and why ops ran eagerly."""
    lines = ["# Coverage", ""]
    for way, s in summaries.items():
        h = s["header"]
        lines += [f"## {way} against eager", ""]
        lines += [f"PyTorch {h.get('torch')}, Python {h.get('python')}, {h.get('started')}", ""]
        lines += _table(s) + _lists(s)
    return "\n".join(lines) + "\n"


def _table(s: dict[str, Any]) -> list[str]:
    head = ["source", "cases", *STATUSES, "ops in graph: median", "cases with 99 % or more"]
    head += ["cases with none", "diverge late", "eager differs from itself", "time / eager"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, row in [*s["sources"].items(), ("all", s["all"])]:
        share = row["share"]
        cells = [name, row["cases"], *(row["counts"][x] for x in STATUSES)]
        cells += [_percent(share.get(k)) for k in ("median", "at_least_99", "none")]
        cells += [row["late_divergences"], row["self_differs"]]
        cells.append(row["time_against_eager"].get("median", ""))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]


def _lists(s: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if s["failures"]:
        lines += ["### Failures", "", "| case | program | status | what |", "|---|---|---|---|"]
        for r in s["failures"][:_LIST_LIMIT]:
            f = r["failures"][0]
            what = (f["detail"] or [""])[0].replace("|", "\\|").replace("\n", " ")[:160]
            lines.append(f"| {r['case']} | {f['program']} | {f['status']} | {what} |")
        lines.append("")
    if s["reasons"]:
        lines += ["### Why ops ran eagerly", "", "| reason | ops | cases | example |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {r['reason']} | {r['count']} | {r['cases']} | {r['example']} |"
            for r in s["reasons"]
        ]
        lines.append("")
    skips = {f"{n}: {k}": v for n, row in s["sources"].items() for k, v in row["skips"].items()}
    if skips:
        lines += ["### Skipped programs", "", "| reason | programs |", "|---|---|"]
        ranked = sorted(skips.items(), key=lambda kv: -kv[1])
        lines += [f"| {k.replace('|', chr(92) + '|')[:200]} | {v} |" for k, v in ranked]
        lines.append("")
    return lines


def write_reports(folder: Path) -> list[Path]:
    """Writes results.json.gz, coverage.md and coverage.html beside the journals of folder."""
    from .page import html_page

    summaries: dict[str, dict[str, Any]] = {}
    raw: dict[str, Any] = {}
    journals = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")])
    for path in sorted(journals, key=lambda p: (not p.name.startswith("strict"), p.name)):
        header, results = read_journal(path)
        way = header.get("way", path.name.split(".")[0])
        summaries[way] = summarize_way(header, results)
        raw[way] = {"header": header, "cases": list(results.values())}
    if not summaries:
        raise BadInput(f"there is no journal in {folder}; run the harness first")
    written = [folder / "results.json.gz", folder / "coverage.md", folder / "coverage.html"]
    with gzip.GzipFile(written[0], "wb", mtime=0) as file:
        file.write(json.dumps({"summary": summaries, "results": raw}, default=str).encode())
    written[1].write_text(markdown(summaries), encoding="utf-8")
    written[2].write_text(html_page(summaries), encoding="utf-8")
    return written
