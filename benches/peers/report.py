"""What a race says: tables, a page of HTML and a chart for documents, all from its JSON."""

import collections
import html
import math
import statistics
import time
from pathlib import Path

CSS = Path(__file__).resolve().parent.parent.parent / "crates/ringrun/src/common/page.css"
OURS = ("ringreduce", "registered")
NOT_PEERS = (*OURS, "yardstick")
# CPUs that share a cache hand over a line in less than this, as in ringbench's probe.
NEAR_NS, DISTURBED_NS = 110, 2000
TRANSPORTS = {"shm": "shared memory", "tcp": "TCP"}
COLOURS = ("#0b6bcb", "#2a9d5c", "#d2691e", "#8a56c2", "#c9376b", "#1b94a8", "#b0921b", "#7f868d")
NOTE = """Times are microseconds. ratio: the best peer's time divided by ours, ordinary memory, then
registered; above 1, ringreduce is faster. bus: GB/s of ours, 2(n-1)/n x size / time for all_reduce,
(n-1)/n where each rank has a part, else 1. limit: the share of what `ringbench limits` allows that
ours reaches: the bytes that must go between ranks at the rate of lines that other cores wrote, or of
loopback TCP; all buffers read and written once at the rate of copies; or one hand-over. A buffer that
nobody rewrites between calls may stay in a cache, and then ours is above it."""


def human(size):
    for unit in ("", "K", "M"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}G"


def number(value):
    return "-" if value is None else f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f}"


def distance(hand_over_ns):
    """How far the CPUs were from each other before and after a round."""
    if None in hand_over_ns:
        return "one CPU"
    if max(hand_over_ns) > DISTURBED_NS:
        return "CPUs disturbed"
    names = sorted({"near" if ns < NEAR_NS else "far" for ns in hand_over_ns})
    return f"CPUs {names[0]}" if len(names) == 1 else "CPUs changed"


def bus_factor(collective, ranks):
    parts = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    return parts[collective] * (ranks - 1) / ranks if collective in parts else 1


def limit_us(limits, kind, size, hand_over_ns):
    """The least time of a call by the machine's measured rates; None where they were not measured."""
    collective, transport, ranks, _ = kind
    moved = bus_factor(collective, ranks) * size * ranks
    if collective in ("broadcast", "reduce"):
        moved = (ranks - 1) * size
    if transport == "tcp":
        rates = [row["both_ways"] for row in limits["tcp"]]
        return max(limits["tcp_one_way_us"], moved / max(rates) / 1e3) if rates else None
    copies = [row for row in limits["memory"] if row["cores"] == limits["cpus"]]
    if not copies or not limits["dirty_lines_gb_per_s"]:
        return None
    each = size * ranks / limits["cpus"]
    fitting = [row for row in copies if row["bytes"] <= each] or copies[:1]
    memory = ranks * size / max(fitting[-1]["copy"], fitting[-1]["streaming"]) / 1e3
    return max(hand_over_ns / 1e3, moved / limits["dirty_lines_gb_per_s"] / 1e3, memory)


class Group:
    """All rows of one collective, transport, number of ranks and distance of the CPUs."""

    def __init__(self, kind, limits):
        self.kind, self.limits = kind, limits
        self.times = collections.defaultdict(lambda: collections.defaultdict(list))
        self.hand_over = []

    def finish(self):
        medians = {
            size: {name: statistics.median(us) for name, us in row.items()}
            for size, row in self.times.items()
        }
        measured = [ns for ns in self.hand_over if ns is not None]
        self.hand_over_ns = statistics.median(measured) if measured else 0
        self.rows = dict(sorted(medians.items()))
        seen = {name for row in self.rows.values() for name in row}
        self.names = [name for name in OURS if name in seen] + sorted(seen - set(OURS))

    def title(self):
        collective, transport, ranks, where = self.kind
        return f"{collective}, {ranks} ranks, {TRANSPORTS[transport]}, {where} ({self.hand_over_ns:.0f} ns)"

    def best_peer(self, size):
        peers = [(us, name) for name, us in self.rows[size].items() if name not in NOT_PEERS]
        return min(peers) if peers else (None, "-")

    def ratio(self, size, name):
        best, ours = self.best_peer(size)[0], self.rows[size].get(name)
        return best / ours if best and ours else None

    def table(self):
        yield ["bytes", *self.names, "best peer", "ratio", "reg.", "bus", "limit"]
        for size, row in self.rows.items():
            ours, least = row.get("ringreduce"), limit_us(
                self.limits, self.kind, size, self.hand_over_ns
            )
            bus = bus_factor(self.kind[0], self.kind[2]) * size / ours / 1e3 if ours else None
            ratios = [self.ratio(size, name) for name in OURS]
            yield [
                human(size),
                *(number(row.get(name)) for name in self.names),
                self.best_peer(size)[1],
                *(f"{ratio:.2f}" if ratio else "-" for ratio in ratios),
                number(bus),
                f"{100 * least / ours:.0f} %" if least and ours else "-",
            ]


def groups(race):
    found = {}
    for sample in race["samples"]:
        where = distance(sample["hand_over_ns"])
        kind = (sample["collective"], sample["transport"], sample["ranks"], where)
        group = found.setdefault(kind, Group(kind, race["limits"]))
        group.times[sample["bytes"]][sample["program"]] += sample["us"]
        group.hand_over += sample["hand_over_ns"]
    for group in found.values():
        group.finish()
    return [found[kind] for kind in sorted(found)]


def missing(names):
    for name, why in names.items():
        print(f"missing: {name}: {why}")


def remarks(race):
    lines = [f"missing: {name}: {why}" for name, why in race["missing"].items()]
    kinds = collections.Counter()
    for failure in race["failures"]:
        where = f"{failure['collective']}, {failure['transport']}, {failure['ranks']} ranks"
        kinds[f"failed: {failure['program']}: {where}: {failure['why']}"] += 1
    lines += [f"{text} ({count} times)" for text, count in kinds.items()]
    return lines + ([] if race["complete"] else ["the race was ended before its last round"])


def machine(race):
    found, when = race["machine"], time.strftime("%Y-%m-%d", time.gmtime(race["unix_time"]))
    buffers = "refilled before each call" if race["refill"] else "reused"
    return (
        f"{found['cpu']}, {found['cpus']} CPUs, Linux {found['kernel']}, {race['congestion']}; "
        f"buffers {buffers}; {when}"
    )


def text(race):
    out = [race["command"], machine(race), ""]
    for group in groups(race):
        out.append(group.title())
        rows = list(group.table())
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        out += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        out.append("")
    return "\n".join([*out, NOTE, *remarks(race)]) + "\n"


class Chart:
    """Lines over sizes, both axes logarithmic, as SVG."""

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 56, 16, 14, 40

    def __init__(self, lines):
        """`lines` are (name, colour, dash, {size: value})."""
        self.lines = [line for line in lines if line[3]]
        values = [value for line in self.lines for value in line[3].values()]
        sizes = [size for line in self.lines for size in line[3]]
        self.x = [math.log2(min(sizes)), math.log2(max(sizes)) + 1e-9]
        self.y = [math.floor(math.log2(min(values)) - 0.1), math.ceil(math.log2(max(values)) + 0.1)]

    def at(self, size, value):
        wide, high = self.WIDTH - self.LEFT - self.RIGHT, self.HEIGHT - self.TOP - self.BOTTOM
        x = (math.log2(size) - self.x[0]) / (self.x[1] - self.x[0])
        y = (math.log2(value) - self.y[0]) / (self.y[1] - self.y[0])
        return self.LEFT + x * wide, self.HEIGHT - self.BOTTOM - y * high

    def grid(self):
        step = math.ceil((self.y[1] - self.y[0]) / 9)
        for power in range(self.y[0], self.y[1] + 1, step):
            y = self.at(2 ** self.x[0], 2.0**power)[1]
            kind = "even" if power == 0 else "grid"
            yield f'<path class="{kind}" d="M{self.LEFT} {y:.1f}H{self.WIDTH - self.RIGHT}"/>'
            yield f'<text x="{self.LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{2.0**power:g}</text>'
        for power in range(math.ceil(self.x[0]), math.floor(self.x[1]) + 1, 3):
            x = self.at(2**power, 2 ** self.y[0])[0]
            yield f'<text x="{x:.1f}" y="{self.HEIGHT - 20}" text-anchor="middle">{human(2**power)}</text>'

    def drawing(self):
        yield from self.grid()
        for name, colour, dash, points in self.lines:
            at = [(self.at(size, value), size, value) for size, value in sorted(points.items())]
            path = "L".join(f"{x:.1f} {y:.1f}" for (x, y), _, _ in at)
            yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            for (x, y), size, value in at:
                title = html.escape(f"{name}, {human(size)}: {number(value)}")
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{title}</title></circle>'

    def svg(self):
        return f'<svg viewBox="0 0 {self.WIDTH} {self.HEIGHT}">{"".join(self.drawing())}</svg>'

    def legend(self):
        names = (
            f'<span style="color:{colour}">{html.escape(name)}</span>'
            for name, colour, _, _ in self.lines
        )
        return " ".join(names)


def colours(race):
    names = dict.fromkeys([*OURS, *sorted({sample["program"] for sample in race["samples"]})])
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}


def charts(group, colour):
    def lines(value):
        series = {
            name: {size: value(size, row[name]) for size, row in group.rows.items() if name in row}
            for name in group.names
        }
        return [(name, colour[name], "", points) for name, points in series.items()]

    factor = bus_factor(group.kind[0], group.kind[2])
    ratios = [
        (
            f"best peer / {name}",
            colour[name],
            "",
            {size: ratio for size in group.rows if (ratio := group.ratio(size, name))},
        )
        for name in OURS
    ]
    for title, series in (
        ("Time, us", lines(lambda size, us: us)),
        ("Bus bandwidth, GB/s", lines(lambda size, us: factor * size / us / 1e3)),
        ("Best peer's time / ours: above 1, ringreduce is faster", ratios),
    ):
        if any(line[3] for line in series):
            chart = Chart(series)
            yield f'<div class="card"><h3>{title}</h3><div class="key">{chart.legend()}</div>{chart.svg()}</div>'


def page(race):
    style = CSS.read_text() + ".even { stroke: var(--ink) }\n"
    body = [
        f'<h1>ringreduce and its peers</h1><p class="sub">{html.escape(machine(race))}</p>',
        f"<pre>{html.escape(race['command'])}</pre><p>{html.escape(NOTE)}</p>",
    ]
    body += [f'<p class="bad">{html.escape(line)}</p>' for line in remarks(race)]
    for group in groups(race):
        body.append(f'<h2>{html.escape(group.title())}</h2><div class="charts">')
        body += [*charts(group, colours(race)), '</div><div class="scroll"><table>']
        for at, row in enumerate(group.table()):
            tag = "th" if at == 0 else "td"
            body.append(
                "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
            )
        body.append("</table></div>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>ringreduce and its peers</title>'
        f"<style>\n{style}</style></head><body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def picture(race):
    """The ratios of all_reduce, one line for each number of ranks, transport and distance."""
    lines = []
    for group in groups(race):
        collective, transport, ranks, where = group.kind
        if collective == "all_reduce":
            ratios = {
                size: ratio for size in group.rows if (ratio := group.ratio(size, "ringreduce"))
            }
            dash = "" if transport == "shm" else "6 4"
            lines.append((f"{ranks} ranks, {TRANSPORTS[transport]}, {where}", ranks, dash, ratios))
    counts = sorted({ranks for _, ranks, _, _ in lines})
    lines = [
        (name, COLOURS[counts.index(ranks) % len(COLOURS)], dash, points)
        for name, ranks, dash, points in lines
    ]
    if not any(line[3] for line in lines):
        raise ValueError("no all_reduce of ringreduce and of a peer: there is no ratio to draw")
    chart = Chart(lines)
    rows = [
        f'<path d="M60 {20 * at - 4}h28" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<text x="96" y="{20 * at}">{name}</text>'
        for at, (name, colour, dash, _) in enumerate(chart.lines, 1)
    ]
    high = chart.HEIGHT + 20 * len(rows) + 40
    style = "text { font: 12px system-ui, sans-serif; fill: #57606a } .grid { stroke: #d0d7de } .even { stroke: #57606a }"
    title = "Time of the best peer / time of ringreduce (above 1: ringreduce is faster)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {chart.WIDTH} {high}" role="img" aria-label="{title}">'
        f'<style>{style}</style><rect width="{chart.WIDTH}" height="{high}" rx="12" fill="#ffffff"/>'
        f'<text x="16" y="22">{title}</text><g transform="translate(0 28)">{"".join(chart.drawing())}</g>'
        f'<g transform="translate(0 {chart.HEIGHT + 28})">{"".join(rows)}</g></svg>\n'
    )
