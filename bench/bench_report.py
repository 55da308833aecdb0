"""From the figures to Markdown tables. Ratios are paired: variant over eager of the same run."""

import statistics

SLOWEST_FIRST_CALL = 1.5
MOST_LIVE_BYTES = 1.05


def paired(runs, reference):
    """The median over the runs of median step time over the reference's median step time."""
    ratios = [a["median"] / b["median"] for a, b in zip(runs, reference, strict=False)]
    return statistics.median(ratios) if ratios else None


def times_of(part):
    """variant -> runs, from an interleaved answer or from the answers of single processes."""
    if "variants" in part:
        return {name: entry["runs"] for name, entry in part["variants"].items()}
    return {
        name: answer["variants"][name]["runs"]
        for name, answer in part.items()
        if "variants" in answer
    }


def distances_of(part):
    """Nanoseconds from core to core, before and after each run of each variant."""
    runs = [run for variant in times_of(part).values() for run in variant]
    return [distance for run in runs for distance in run.get("core_ns", ()) if distance is not None]


def span(values):
    return f"{min(values):.0f}-{max(values):.0f}" if values else "-"


def milliseconds(runs):
    if not runs:
        return "failed"
    middle, low, high = (
        statistics.median(run[key] for run in runs) * 1e3 for key in ("median", "p10", "p90")
    )
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def times_table(programs, part):
    """Step times in ms, ratios, and whether Lockstep is slower than the two copies differ."""
    names = []
    for result in programs.values():
        names += [name for name in times_of(result.get(part, {})) if name not in names]
    if not names:
        return ""
    others = [name for name in names if name != "eager_a"]
    head = ["program", *(f"{name} ms (p10-p90)" for name in names)]
    head += [*(f"{name} / eager_a" for name in others), "slower than eager"]
    has_distances = any(distances_of(result.get(part, {})) for result in programs.values())
    head += ["ns between cores"] * has_distances
    rows, all_ratios = [], {name: [] for name in others}
    for program, result in programs.items():
        runs = times_of(result.get(part, {}))
        reference = runs.get("eager_a", [])
        ratios = {name: paired(runs[name], reference) for name in others if runs.get(name)}
        for name, ratio in ratios.items():
            if ratio:
                all_ratios[name].append(ratio)
        row = [program, *(milliseconds(runs.get(name)) for name in names)]
        row += [number(ratios.get(name)) for name in others]
        row.append(slower(ratios))
        rows.append(row + [span(distances_of(result.get(part, {})))] * has_distances)
    means = [number(geometric_mean(all_ratios[name])) for name in others]
    rows.append(["geometric mean", *[""] * len(names), *means, *[""] * (1 + has_distances)])
    return table(head, rows)


def slower(ratios):
    """Names of Lockstep's variants that are slower than eager by more than the copies differ."""
    if ratios.get("eager_b") is None:
        return "-"
    noise = abs(ratios["eager_b"] - 1)
    found = [n for n in ("always", "auto") if ratios.get(n) and ratios[n] - 1 > noise]
    return ", ".join(found) or "no"


def geometric_mean(values):
    return statistics.geometric_mean(values) if values else None


def graph_table(programs):
    head = ["program", "equal to eager", "share of ops in the graph", "divergences", "auto chose"]
    rows = []
    for program, result in programs.items():
        variants = result.get("interleaved", {}).get("variants", {})
        if "always" not in variants:
            continue
        entry, stats = variants["always"], variants["always"]["stats"]
        differences = entry["differences"] + variants.get("auto", {}).get("differences", [])
        share = stats.get("graph_ops", 0) / max(1, stats.get("ops", 0))
        chose = variants["auto"]["stats"].get("auto", {}).get("way", "-")
        equal = "yes" if not differences else "no: " + differences[0].replace("|", "/")
        rows.append([program, equal, number(share, 4), stats.get("divergences", "-"), chose])
    return table(head, rows) if rows else ""


def choice_table(programs):
    """What auto chose, alone in its process, and on what figures (of its last measurement)."""
    ways = ("behind", "yielding", "inplace", "eager")
    rows = []
    for program, result in programs.items():
        variants = result.get("alone", {}).get("auto", {}).get("variants", {})
        choice = variants.get("auto", {}).get("stats", {}).get("auto")
        if not choice:
            continue
        figures = [choice[f"{way}_seconds"] * 1e3 for way in ways]
        cells = [f"{figure:.2f}" if figure else "-" for figure in figures]
        rows.append([program, choice["way"] if choice["is_settled"] else "-", *cells])
    return table(["program", "auto chose", *(f"{way} ms" for way in ways)], rows) if rows else ""


def memory_table(programs):
    head = [
        "program",
        "eager MB",
        "lockstep MB",
        "ratio",
        "eager RSS MB",
        "lockstep RSS MB",
        "ratio",
    ]
    rows = []
    for program, result in programs.items():
        if "memory" not in result:
            continue
        live, rss = result["memory"]["live"], result["memory"]["rss"]
        peaks = [live[name].get("peak_bytes", 0) for name in ("eager_a", "always")]
        resident = [rss[name].get("peak_bytes", 0) for name in ("eager_a", "always")]
        row = [program]
        for left, right in (peaks, resident):
            ratio = right / left if left and right else None
            row += [f"{left / 1e6:.1f}", f"{right / 1e6:.1f}", number(ratio)]
        rows.append(row)
    return table(head, rows) if rows else ""


def first_table(programs):
    head = ["program", "eager ms", "recording call ms", "ratio"]
    rows = []
    for program, result in programs.items():
        if "variants" not in result.get("first", {}):
            continue
        found = result["first"]["variants"]
        eager, recording = (statistics.median(found[name]) * 1e3 for name in ("eager_a", "always"))
        rows.append([program, number(eager, 1), number(recording, 1), number(recording / eager)])
    return table(head, rows) if rows else ""


def fast_table(programs):
    head = ["program", "first step s", "first fast step s", "which", "steady ms"]
    head += ["with a cache: first fast step s", "which"]
    rows = []
    for program, result in programs.items():
        empty, filled = (result.get("fast", {}).get(name, {}) for name in ("empty", "filled"))
        if "steady" not in empty or "steady" not in filled:
            continue
        row = [program, number(empty["first_step_s"], 2), number(empty["first_fast_s"], 2)]
        row += [empty["first_fast_steps"], number(empty["steady"]["median"] * 1e3, 2)]
        rows.append([*row, number(filled["first_fast_s"], 2), filled["first_fast_steps"]])
    return table(head, rows) if rows else ""


def errors(node, path=""):
    """Sentences for all parts that gave no figures."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return []
    if isinstance(node.get("error"), str):
        return [f"* {path}: {node['error'].splitlines()[-1]}"]
    return [line for key, value in node.items() for line in errors(value, f"{path} {key}".strip())]


def markdown(results):
    machine, programs = results["machine"], results["programs"]
    about = ", ".join(f"{key} {value}" for key, value in machine.items())
    sections = [
        ("Interleaved in one process", times_table(programs, "interleaved")),
        ("Each alone in a process", times_table(programs, "alone")),
        ("What auto chose there", choice_table(programs)),
        ("What ran where (when=always)", graph_table(programs)),
        ("Peak memory", memory_table(programs)),
        ("First call, fresh processes", first_table(programs)),
        ("First fast step, auto", fast_table(programs)),
        ("Not measured", "\n".join(errors(programs))),
    ]
    text = [f"# Step times\n\n{about}\n"]
    text += [f"## {title}\n\n{body}\n" for title, body in sections if body]
    return "\n".join(text)
