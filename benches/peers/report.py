"""What a race says: tables and a page of HTML, from its JSON."""

import collections
import html
import math
import statistics
import time
from pathlib import Path

CSS = Path(__file__).resolve().parent.parent.parent / "crates/tools/src/page.css"
OURS = ("ringreduce", "registered")
# CPUs that share a cache hand over a line in less than this, as in ringbench's probe.
NEAR_NS, DISTURBED_NS = 110, 2000
TRANSPORTS = {"shm": "shared memory", "tcp": "TCP"}
# The 97.5 % quantiles of Student's t, from 1 degree of freedom on.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
COLOURS = "#0b6bcb #2a9d5c #d2691e #8a56c2 #c9376b #1b94a8 #b0921b #7f868d #6b4f2a".split()
NOTE = """Times are microseconds. ratio: the best peer's time divided by ours, ordinary memory, then
registered; above 1, ringreduce is faster. bus: GB/s of ours, 2(n-1)/n x size / time for all_reduce,
(n-1)/n where each rank has a part, else 1. limit: the share of what `ringbench limits` allows that
ours reaches, ordinary memory, then registered: the longest of one hand-over, the bytes that must go
between cores at the rate of lines that other cores wrote (or between ranks at that of loopback TCP),
and all buffers read and written once at the rate of copies. Registered memory that nobody rewrites
between calls stays in the caches of the cores that work on it, and only the last counts."""


def human(size):
    for unit in ("", "K", "M"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}G"


def number(value):
    return "-" if value is None else f"{value:.{max(0, 3 - len(str(int(value))))}f}"


def distance(hand_over_ns):
    """How far the CPUs were from each other before and after a round."""
    if None in hand_over_ns:
        return "one CPU"
    if max(hand_over_ns) > DISTURBED_NS:
        return "CPUs disturbed"
    names = sorted({"near" if ns < NEAR_NS else "far" for ns in hand_over_ns})
    return f"CPUs {names[0]}" if len(names) == 1 else "CPUs changed"


class Group:
    """All rows of one collective, transport, number of ranks, and distance of the CPUs or round."""

    def __init__(self, kind, samples, race):
        self.collective, self.transport, self.ranks, self.where = kind
        self.bounds, self.refill = race["bounds"], race["refill"]
        times = collections.defaultdict(lambda: collections.defaultdict(list))
        for sample in samples:
            times[sample["bytes"]][sample["program"]] += sample["us"]
        # Median microseconds by size and program.
        self.rows = {
            size: {name: statistics.median(us) for name, us in row.items()}
            for size, row in sorted(times.items())
        }
        hand_overs = [ns for sample in samples for ns in sample["hand_over_ns"] if ns is not None]
        self.hand_over_ns = statistics.median(hand_overs or [0])
        seen = {name for row in self.rows.values() for name in row}
        self.names = [name for name in OURS if name in seen] + sorted(seen - set(OURS))
        self.ranks_and_place = f"{self.ranks} ranks, {TRANSPORTS[self.transport]}, {self.where}"
        self.panel = self.collective, self.transport, self.ranks
        self.title = f"{self.collective}, {self.ranks_and_place} ({self.hand_over_ns:.0f} ns)"

    def time(self, size, name):
        return self.rows[size].get(name)

    def bus(self, size, name):
        parts = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
        part, us = parts.get(self.collective), self.time(size, name)
        return us and (part * (self.ranks - 1) / self.ranks if part else 1) * size / us / 1e3

    def best_peer(self, size):
        others = (*OURS, "yardstick")
        peers = [(us, name) for name, us in self.rows[size].items() if name not in others]
        return min(peers, default=(None, "-"))

    def ratio(self, size, name):
        best, us = self.best_peer(size)[0], self.time(size, name)
        return best / us if best and us and name in OURS else None

    def share(self, size, name):
        """The percentage of the machine's limit that a program reaches."""
        bounds = self.bounds.get(f"{self.collective} {self.transport} {self.ranks} {size}")
        us, stays_in_caches = self.time(size, name), name == "registered" and not self.refill
        if not us or not bounds or bounds[stays_in_caches] is None:
            return None
        return 100 * max(self.hand_over_ns / 1e3, bounds[stays_in_caches]) / us

    def points(self, value, name):
        return {size: found for size in self.rows if (found := value(self, size, name))}

    def table(self):
        yield ["bytes", *self.names, "best peer", "ratio", "reg.", "bus", "limit", "reg."]
        for size in self.rows:
            ratios = [self.ratio(size, name) for name in OURS]
            shares = [self.share(size, name) for name in OURS]
            yield [
                human(size),
                *(number(self.time(size, name)) for name in self.names),
                self.best_peer(size)[1],
                *(f"{ratio:.2f}" if ratio else "-" for ratio in ratios),
                number(self.bus(size, OURS[0])),
                *(f"{share:.0f} %" if share else "-" for share in shares),
            ]


def place(sample):
    return distance(sample["hand_over_ns"])


def groups(race, part=place):
    """The samples of each collective, transport and number of ranks, apart by what `part` says."""
    found = collections.defaultdict(list)
    for sample in race["samples"]:
        fields = [sample[field] for field in ("collective", "transport", "ranks")]
        found[(*fields, part(sample))].append(sample)
    return [Group(kind, samples, race) for kind, samples in sorted(found.items())]


def remarks(race):
    kinds = collections.Counter()
    for failure in race["failures"]:
        where = f"{failure['collective']}, {failure['transport']}, {failure['ranks']} ranks"
        kinds[f"failed: {failure['program']}: {where}: {failure['why']}"] += 1
    yield from (f"missing: {name}: {why}" for name, why in race["missing"].items())
    yield from (f"{text} ({count} times)" for text, count in kinds.items())
    if not race["complete"]:
        yield "the race was ended before its last round"


def machine(race):
    found, when = race["machine"], time.strftime("%Y-%m-%d", time.gmtime(race["unix_time"]))
    buffers = "refilled before each call" if race["refill"] else "reused"
    sets = "".join(f" {name}" for name in found.get("instructions", []))
    return (
        f"{found['cpu']}{sets}, {found['cpus']} CPUs, Linux {found['kernel']}, {race['congestion']}; "
        f"buffers {buffers}; {when}"
    )


def columns(rows):
    """The lines of a table, each column as wide as its widest cell."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]


def lost(race):
    """The cells that the best peer wins in every likely case: the interval of the ratio, with 95 %
    confidence by Student's t of the rounds' logarithms, lies below 1."""
    rounds = collections.defaultdict(list)
    for group in groups(race, lambda sample: sample["round"]):
        for size, ratio in group.points(Group.ratio, OURS[0]).items():
            rounds[group.panel, size].append(math.log(ratio))
    for ((collective, transport, ranks), size), logs in sorted(rounds.items()):
        if len(logs) < 2:
            continue
        t = STUDENT[min(len(logs) - 1, len(STUDENT)) - 1]
        mean, half = statistics.mean(logs), t * statistics.stdev(logs) / math.sqrt(len(logs))
        if mean + half < 0:
            low, middle, high = (math.exp(log) for log in (mean - half, mean, mean + half))
            where = f"{collective}, {transport}, {ranks} ranks, {human(size)}"
            yield f"lost: {where}: {middle:.2f} ({low:.2f} to {high:.2f})"


def text(race):
    out = [race["command"], machine(race), ""]
    for group in groups(race):
        out += [group.title, *columns(group.table()), ""]
    return "\n".join([*out, NOTE, *lost(race), *remarks(race)]) + "\n"


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 56, 16, 14, 40


def drawing(lines):
    """Lines (name, colour, {size: value}) in SVG; both axes are logarithmic."""
    values = [math.log2(value) for *_, points in lines for value in points.values()]
    sizes = [math.log2(size) for *_, points in lines for size in points]
    first, last = min(sizes), max(sizes) + 1e-9
    low, high = math.floor(min(values) - 0.1), math.ceil(max(values) + 0.1)

    def x(log):
        return LEFT + (log - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(log):
        return HEIGHT - BOTTOM - (log - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    for power in range(low, high + 1, math.ceil((high - low) / 9)):
        kind, at = "even" if power == 0 else "grid", y(power)
        yield f'<path class="{kind}" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{2.0**power:g}</text>'
    for power in range(math.ceil(first), math.floor(last) + 1, 3):
        at = f'x="{x(power):.1f}" y="{HEIGHT - 20}" text-anchor="middle"'
        yield f"<text {at}>{human(2**power)}</text>"
    for name, colour, points in lines:
        at = [(x(math.log2(size)), y(math.log2(value))) for size, value in points.items()]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for (x_at, y_at), (size, value) in zip(at, points.items()):
            title = html.escape(f"{name}, {human(size)}: {number(value)}")
            dot = f'cx="{x_at:.1f}" cy="{y_at:.1f}" r="3" fill="{colour}"'
            yield f"<circle {dot}><title>{title}</title></circle>"


CHARTS = {
    "Time, us": Group.time,
    "Bus bandwidth, GB/s": Group.bus,
    "Best peer's time / ours: above 1, ringreduce is faster": Group.ratio,
    "Share of the machine's limit, %": Group.share,
}


def charts(group, colours):
    for title, value in CHARTS.items():
        lines = [(name, colours[name], group.points(value, name)) for name in group.names]
        if lines := [line for line in lines if line[2]]:
            key = " ".join(
                f'<span style="color:{colour}">{html.escape(name)}</span>' for name, colour, _ in lines
            )
            yield f'<div class="card"><h3>{title}</h3><div class="key">{key}</div>'
            yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(drawing(lines))}</svg></div>'


def page(race):
    names = dict.fromkeys([*OURS, *sorted({sample["program"] for sample in race["samples"]})])
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    body = [f'<p class="bad">{html.escape(line)}</p>' for line in remarks(race)]
    for group in groups(race):
        body += [f'<h2>{html.escape(group.title)}</h2><div class="charts">', *charts(group, colours)]
        body.append('</div><div class="scroll"><table>')
        for row in group.table():
            tag = "th" if row[0] == "bytes" else "td"
            cells = (f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
            body.append(f"<tr>{''.join(cells)}</tr>")
        body.append("</table></div>")
    body = "\n".join(body)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ringreduce and its peers</title>
<style>\n{CSS.read_text()}.even {{ stroke: var(--ink) }}\n</style></head><body><main>
<h1>ringreduce and its peers</h1><p class="sub">{html.escape(machine(race))}</p>
<pre>{html.escape(race["command"])}</pre><p>{html.escape(NOTE)}</p>
{body}
</main></body></html>
"""
