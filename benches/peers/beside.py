"""The ratios of several machines' races, side by side."""

import report


def text(races):
    """A table for each collective, transport and number of ranks that all races have: the best peer's
    time by ours, for ordinary memory, of each machine, over all rounds."""
    found = [{group.panel: group for group in report.groups(race, lambda _: "")} for race in races]
    out = ["", *(f"[{number}] {report.machine(race)}" for number, race in enumerate(races, 1)), ""]
    common = [panel for panel in found[0] if all(panel in one for one in found)]
    if not common:
        out.append("no collective, transport and number of ranks is in all of these races")
    for panel in common:
        same = [one[panel] for one in found]
        collective, transport, ranks = panel
        out.append(f"{collective}, {ranks} ranks, {report.TRANSPORTS[transport]}: ratio by machine")
        rows = [["bytes", *(f"[{number}]" for number in range(1, len(races) + 1))]]
        for size in sorted(set().union(*(group.rows for group in same))):
            ratios = (
                group.ratio(size, report.OURS[0]) if size in group.rows else None for group in same
            )
            rows.append([report.human(size), *(f"{ratio:.2f}" if ratio else "-" for ratio in ratios)])
        out += [*report.columns(rows), ""]
    return "\n".join(out) + "\n"
