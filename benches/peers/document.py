"""The tables and the chart of the documents: medians over all rounds of a race, from its JSON."""

import collections
import html
import math
import statistics

import report

SIZES = {"": "", "K": " KiB", "M": " MiB", "G": " GiB"}
LINES = {"ringreduce": "ordinary memory", "registered": "registered memory"}
# One panel for each transport and number of ranks.
PANEL, HEIGHT, LEFT, RIGHT, GAP, HEAD, TITLE, FOOT = 262, 132, 44, 30, 16, 88, 26, 18
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 13px; fill: #57606a }
.page { fill: #ffffff } .grid { stroke: #d0d7de } .even { stroke: #1f2328; stroke-width: 1.5 }
.slower { fill: #57606a; opacity: 0.1 } path { fill: none } .line { stroke-width: 2.5 } .band { opacity: 0.25 }
path.ringreduce { stroke: #0b6bcb } .ringreduce { fill: #0b6bcb }
path.registered { stroke: #c2570c } .registered { fill: #c2570c }
path.line { fill: none } path.band { stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9da7b3 } .page { fill: #0d1117 } .grid { stroke: #30363d }
  .even { stroke: #e6edf3 } .slower { fill: #9da7b3; opacity: 0.15 } .band { opacity: 0.35 }
  path.ringreduce { stroke: #58a6ff } .ringreduce { fill: #58a6ff }
  path.registered { stroke: #f0883e } .registered { fill: #f0883e }
}
"""


def pooled(race):
    return report.groups(race, lambda sample: "all rounds")


def by_round(race):
    return report.groups(race, lambda sample: sample["round"])


def microseconds(value):
    digits = 0 if value >= 9.95 else 1 if value >= 0.995 else 2
    return f"{value:,.{digits}f}"


def size_in_words(size):
    text = report.human(size)
    return text if text.isdigit() else text[:-1] + SIZES[text[-1]]


def means(group):
    """The geometric mean of a group's ratios by ours."""
    for name in report.OURS:
        if ratios := group.points(report.Group.ratio, name).values():
            yield name, statistics.geometric_mean(ratios)


def cell(group, size):
    ratios = [group.ratio(size, name) for name in report.OURS]
    if ratios[0] is None:
        return "-"
    ours, best = group.time(size, report.OURS[0]), group.best_peer(size)[0]
    shown = "; ".join(f"{ratio:.1f}" for ratio in ratios if ratio)
    return f"{microseconds(ours)} ({microseconds(best)}) {shown}"


def tables(race):
    """A table in Markdown for each collective and transport: ours (the best peer) ratio; registered."""
    kinds = collections.defaultdict(list)
    for group in pooled(race):
        kinds[group.collective, group.transport].append(group)
    for (collective, transport), found in kinds.items():
        yield f"{collective}, {report.TRANSPORTS[transport]}:\n"
        rows = [["Bytes", *(f"{group.ranks} ranks" for group in found)], ["---"] * (len(found) + 1)]
        for size in sorted({size for group in found for size in group.rows}):
            cells = (cell(group, size) if size in group.rows else "-" for group in found)
            rows.append([size_in_words(size), *cells])
        mean = ("; ".join(f"{mean:.1f}" for _, mean in means(group)) for group in found)
        rows.append(["geometric mean", *mean])
        yield from (f"| {' | '.join(row)} |".replace(" --- ", "---") for row in rows)
        yield ""


def markdown(race):
    return "\n".join(tables(race))


class Axes:
    """Both axes are logarithmic, and those of all panels are equal."""

    def __init__(self, groups):
        sizes = [math.log2(size) for group in groups for size in group.rows]
        ratios = [
            math.log2(ratio)
            for group in groups
            for name in LINES
            for ratio in group.points(report.Group.ratio, name).values()
        ]
        if not ratios:
            raise ValueError("no all_reduce of ringreduce and of a peer: there is no ratio to draw")
        self.first, self.last = min(sizes), max(sizes)
        self.low, self.high = min(-1, math.floor(min(ratios))), max(1, math.ceil(max(ratios)))

    def x(self, size):
        return (math.log2(size) - self.first) / max(self.last - self.first, 1e-9) * PANEL

    def y(self, ratio):
        return (self.high - math.log2(ratio)) / (self.high - self.low) * HEIGHT

    def path(self, points):
        return "M" + "L".join(f"{self.x(size):.1f} {self.y(ratio):.1f}" for size, ratio in points)


def grid(axes, is_first, is_last):
    even = axes.y(1)
    yield f'<rect class="slower" y="{even:.1f}" width="{PANEL}" height="{HEIGHT - even:.1f}"/>'
    for power in range(axes.low, axes.high + 1):
        at = axes.y(2.0**power)
        yield f'<path class="{"grid" if power else "even"}" d="M0 {at:.1f}h{PANEL}"/>'
        if is_first:
            yield f'<text class="small" x="-6" y="{at + 4:.1f}" text-anchor="end">{2.0**power:g}</text>'
    # Four sizes fit below a panel on the screen of a telephone.
    powers = range(math.ceil(axes.first), math.floor(axes.last) + 1)
    for power in [power for power in powers if power in (3, 10, 16, 20, 24, 28)] if is_last else []:
        at = f'x="{axes.x(2**power):.1f}" y="{HEIGHT + 18}" text-anchor="middle"'
        yield f'<text class="small" {at}>{report.human(2**power)}</text>'


def curves(axes, group, rounds):
    """The line of each kind of memory, in a band from its lowest round to its highest one."""
    ratio = report.Group.ratio
    lines = {name: list(points.items()) for name in LINES if (points := group.points(ratio, name))}
    for name, points in lines.items():
        seen = [each.points(ratio, name) for each in rounds]
        spread = [(size, [ratios[size] for ratios in seen if size in ratios]) for size, _ in points]
        upper = [(size, max(ratios)) for size, ratios in spread if ratios]
        lower = [(size, min(ratios)) for size, ratios in reversed(spread) if ratios]
        yield f'<path class="band {name}" d="{axes.path(upper + lower)}Z"/>'
    for name, points in lines.items():
        yield f'<path class="line {name}" d="{axes.path(points)}"/>'
        for size, value in points:
            title = html.escape(f"{LINES[name]}, {report.human(size)}: {value:.2f}")
            at = f'cx="{axes.x(size):.1f}" cy="{axes.y(value):.1f}"'
            yield f'<circle class="{name}" {at} r="3"><title>{title}</title></circle>'


def legend(rounds):
    def key(shape, x, y, words):
        return f'{shape}<text class="small" x="{x + 32}" y="{y}">{words}</text>'

    yield f'<text x="{LEFT}" y="26">Time of the best peer / time of ringreduce, by size in bytes</text>'
    for at, (name, words) in zip((LEFT, LEFT + 170), LINES.items()):
        yield key(f'<path class="line {name}" d="M{at} 45h26"/>', at, 50, words)
    yield key(f'<path class="even" d="M{LEFT + 350} 45h26"/>', LEFT + 350, 50, "1: equally fast")
    band = f'<rect class="band ringreduce" x="{LEFT}" y="61" width="26" height="12"/>'
    yield key(band, LEFT, 72, f"lowest to highest of {rounds} rounds")
    yield f'<text class="small" x="{LEFT + 350}" y="72">2.0x: geometric mean</text>'


def picture(race):
    """The ratios of all_reduce: a row of panels for each number of ranks, a column for each transport."""
    found = [group for group in pooled(race) if group.collective == "all_reduce"]
    rounds = [group for group in by_round(race) if group.collective == "all_reduce"]
    axes = Axes([*found, *rounds])
    counts = sorted({group.ranks for group in found})
    transports = sorted({group.transport for group in found})
    panels = []
    for group in found:
        column, row = transports.index(group.transport), counts.index(group.ranks)
        x, y = LEFT + column * (PANEL + RIGHT), HEAD + row * (HEIGHT + TITLE + GAP) + TITLE
        same = [each for each in rounds if each.panel == group.panel]
        title = f"{group.ranks} ranks, {report.TRANSPORTS[group.transport]}"
        mean = " ".join(f'<tspan class="{name}">{mean:.1f}x</tspan>' for name, mean in means(group))
        panels += [
            f'<g transform="translate({x} {y})"><text y="-8">{title}</text>',
            f'<text x="{PANEL}" y="-8" text-anchor="end">{mean}</text>',
            *grid(axes, column == 0, row == len(counts) - 1),
            *curves(axes, group, same),
            "</g>",
        ]
    width = LEFT + len(transports) * (PANEL + RIGHT)
    height = HEAD + len(counts) * (HEIGHT + TITLE + GAP) + FOOT
    label = "Time of the best peer divided by time of ringreduce; above 1, ringreduce is faster"
    size = f'viewBox="0 0 {width} {height}" width="{width * 1.2:.0f}" height="{height * 1.2:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
        f'<style>{STYLE}</style><rect class="page" width="{width}" height="{height}" rx="12"/>',
        *legend(len({each.where for each in rounds})),
        *panels,
        "</svg>\n",
    ]
    return "\n".join(lines)
