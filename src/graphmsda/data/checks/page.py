"""A check of domains as text for people: what is wrong first, then the tables."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from graphmsda.data.checks.report import DomainReport, Group, Member, Report

WIDTH = 100
MOST_CLASSES = 40  # rows of the table of classes; of more a summary tells more
EXAMPLES = 5  # groups of copies shown of each kind
MEMBERS = 4  # copies shown of a group
IMBALANCED = 3.0
TIE = "\N{NO-BREAK SPACE}"  # no line ends there


def report_page(report: Report) -> str:
    """Return a report as plain text of at most 100 columns."""
    sections = [_heading(report), _findings(report), *_copies(report), _domains(report), *_classes(report)]
    notes = [*report.notes, *(note for domain in report.domains for note in domain.notes)]
    if notes:
        sections.append(["Notes", *(line for note in notes for line in _bullet("-", note))])
    sheets = [sheet for sheet in (*(domain.sheet for domain in report.domains), report.copies_sheet) if sheet]
    if sheets:
        sections.append(["Contact sheets", *(f"  {sheet}" for sheet in sheets)])
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _heading(report: Report) -> list[str]:
    total = sum(domain.count for domain in report.domains)
    classes = f", {_count(len(report.classes), 'class', 'classes')}" if report.classes else ""
    return [f"{_count(len(report.domains), 'domain')}, {_count(total, _kind(report))}{classes}"]


def _findings(report: Report) -> list[str]:
    lines = [line for mark, text in sentences(report) for line in _bullet(mark, text)]
    return ["Findings", *(lines or ["  nothing amiss"])]


def sentences(report: Report) -> Iterator[tuple[str, str]]:
    """Yield a mark, ``!`` for what spoils a result, and a sentence for each finding, the worst first."""
    kind = _kind(report)
    for leak in report.leaks():
        held = f"{_count(leak.count, f'{leak.part} {kind}')} of {leak.domain} {'is' if leak.count == 1 else 'are'}"
        if leak.exact:
            yield "!", f"leakage: {held} also in {leak.also_in} data"
        else:
            yield "!", f"perhaps leakage: {held} nearly the same as {leak.also_in} {kind}s; look at them"
    across = [group for group in report.groups if group.across_domains]
    if across:
        lie = "lies" if len(across) == 1 else "lie"
        yield "!", f"{_count(len(across), kind)} {lie} in more than one domain{_split(across)}"
    conflicting = [group for group in report.groups if group.conflicting_labels]
    if conflicting:
        yield "!", f"{_count(len(conflicting), 'group')} of copies with different labels{_split(conflicting)}"
    for domain in report.domains:
        if domain.unreadable:
            name, reason = next(iter(domain.unreadable_examples.items()))
            yield "!", f"{domain.name}: {domain.unreadable:,} unreadable, such as {_short(name, 50)} ({reason})"
    for domain in report.domains:
        if domain.not_finite:
            yield "!", f"{domain.name}: {_count(domain.not_finite, 'feature vector')} with values that are not finite"
    if len({domain.features for domain in report.domains}) > 1:
        yield "!", "the domains have feature vectors of different lengths"
    for domain in report.domains:
        if domain.missing:
            absent = f"{len(domain.missing)} of {len(report.classes)} classes"
            yield "!", f"{domain.name} lacks {absent}: {_enumerated(domain.missing)}"
    for domain in report.domains:
        if domain.imbalance is not None and domain.imbalance >= IMBALANCED and domain.largest and domain.smallest:
            (most, many), (least, few) = domain.largest, domain.smallest
            yield "-", f"{domain.name}: {many:,} {kind}s of {most} but {few:,} of {least}, {domain.imbalance:.1f} : 1"
    inside = [group for group in report.groups if not (group.across_domains or group.across_parts)]
    if inside:
        spare = Counter[str]()
        for group in inside:
            spare[group.members[0].domain] += len(group.members) - 1
        where = ", ".join(f"{name} {count:,}" for name, count in spare.most_common())
        copies = _count(spare.total(), "spare copy", "spare copies")
        yield "-", f"{copies} inside one domain and part{_split(inside)}: {where}"
    for domain in report.domains:
        if domain.nearly_constant:
            example = _short(domain.nearly_constant_examples[0], 50)
            yield "-", f"{domain.name}: {_count(domain.nearly_constant, 'image')} of one colour, such as {example}"
    if not report.complete:
        yield "-", "so many images look alike that not all were compared: there may be more near duplicates"


def _copies(report: Report) -> Iterator[list[str]]:
    """Yield examples of each kind of copies, each group under the first heading that fits."""
    kinds: dict[str, list[Group]] = {
        "Leakage: copies in different parts": [],
        "Copies in different domains": [],
        "Copies with different labels": [],
        "Other copies": [],
    }
    headings = list(kinds)
    for group in report.groups:
        fits = (group.across_parts, group.across_domains, group.conflicting_labels, True)
        kinds[headings[fits.index(True)]].append(group)
    origins = [origin for domain in report.domains for origin in domain.origins]
    for heading, groups in kinds.items():
        if groups:
            shown = f", the first {EXAMPLES} shown" if len(groups) > EXAMPLES else ""
            lines = [line for group in groups[:EXAMPLES] for line in _group(group, origins)]
            yield [f"{heading} ({_count(len(groups), 'group')}{shown})", *lines]


def _group(group: Group, origins: Sequence[str]) -> Iterator[str]:
    shown = _telling(group)
    places = [" ".join(filter(None, (member.domain, member.part))) for member in shown]
    labels = [member.label or "" for member in shown]
    wide, deep = max(map(len, places)), min(max(map(len, labels)), 20)
    for number, (member, place, label) in enumerate(zip(shown, places, labels, strict=True)):
        mark = ("same" if group.exact else "near") if number == 0 else ""
        start = f"  {mark:4}  {place:{wide}}  {label[:20]:{deep}}  "
        name = next((rest for origin in origins if (rest := member.name.removeprefix(f"{origin}/")) != member.name), "")
        yield start + _short(name or member.name, max(20, WIDTH - len(start)))
    if len(group.members) > len(shown):
        yield f"        and {len(group.members) - len(shown):,} more"


def _telling(group: Group) -> list[Member]:
    """Return a few members that show why a group matters: one of each place and label first."""
    first: dict[tuple[str, str | None, str | None], Member] = {}
    for member in group.members:
        first.setdefault((member.domain, member.part, member.label), member)
    rest = [member for member in group.members if all(member is not other for other in first.values())]
    return [*first.values(), *rest][:MEMBERS]


def _domains(report: Report) -> list[str]:
    parts = list(dict.fromkeys(part for domain in report.domains for part in domain.parts))
    features = any(domain.features is not None for domain in report.domains)
    head = ["domain", f"{_kind(report)}s", *parts, "classes", "unreadable"]
    head += ["features", "range"] if features else ["width", "height", "sizes"]
    rows = [head]
    for domain in report.domains:
        here = {label for counts in domain.classes.values() for label in counts}
        row = [_short(domain.name, 30), f"{domain.count:,}"]
        row += [f"{domain.parts[part]:,}" if part in domain.parts else "-" for part in parts]
        row += [str(len(here)) if here else "-", f"{domain.unreadable:,}"]
        rows.append(row + (_feature_cells(domain) if features else _size_cells(domain)))
    legend = (
        ["  width and height: smallest/median/largest"]
        if not features and any("/" in cell for row in rows[1:] for cell in row[-3:-1])
        else []
    )
    return ["Domains", *_table(rows), *legend]


def _size_cells(domain: DomainReport) -> list[str]:
    if domain.sizes is None:
        return ["-", "-", "-"]
    sides = (domain.sizes.width, domain.sizes.height)
    return [*(_span(side) for side in sides), f"{domain.sizes.distinct:,}"]


def _span(side: tuple[int, int, int]) -> str:
    return str(side[0]) if side[0] == side[2] else "/".join(map(str, side))


def _feature_cells(domain: DomainReport) -> list[str]:
    spread = "-" if domain.range is None else f"{domain.range[0]:.4g} to {domain.range[1]:.4g}"
    return [str(domain.features), spread]


def _classes(report: Report) -> Iterator[list[str]]:
    columns = [(domain, part) for domain in report.domains for part in domain.classes]
    if not columns:
        return
    if len(report.classes) > MOST_CLASSES:
        yield _summary(report)
        return
    names = [_short(name, 30) for name in report.classes]
    blocks: list[list[list[str]]] = []
    room = 0
    for domain, part in columns:
        counts = domain.classes[part]
        column = [_short(domain.name, 24), "" if part == "all" else part]
        column += [f"{counts[label]:,}" if label in counts else "·" for label in report.classes]
        column.append(f"{sum(counts.values()):,}")
        width = max(map(len, column)) + 2
        if width > room:  # the next columns go below
            blocks.append([["class", "", *names, "all"]])
            room = WIDTH - 2 - max(map(len, blocks[-1][0]))
        blocks[-1].append(column)
        room -= width
    for number, block in enumerate(blocks):
        rows = [list(row) for row in zip(*block, strict=True)]
        rows = [row for row in rows if any(row)]
        yield ["Classes" if number == 0 else "Classes, continued", *_table(rows)]


def _summary(report: Report) -> list[str]:
    rows = [["domain", "part", "classes", "fewest", "median", "most"]]
    lines: list[str] = []
    for domain in report.domains:
        for part, counts in domain.classes.items():
            values = sorted(counts.values())
            cells = (len(values), values[0], int(statistics.median(values)), values[-1])
            rows.append([_short(domain.name, 30), part, *(f"{value:,}" for value in cells)])
        totals: dict[str, int] = {}
        for counts in domain.classes.values():
            for label, count in counts.items():
                totals[label] = totals.get(label, 0) + count
        ranked = sorted(totals, key=lambda label: totals[label])
        if ranked:
            ends = (ranked[:5], ranked[:-6:-1])
            fewest, most = (", ".join(f"{label}{TIE}({totals[label]:,})" for label in some) for some in ends)
            lines += _bullet("-", f"{domain.name}: fewest {fewest}; most {most}")
    title = f"Classes ({len(report.classes)}; --json has the count of each)"
    return [title, *_table(rows), *lines]


def _kind(report: Report) -> str:
    return "image" if all(domain.features is None for domain in report.domains) else "sample"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _split(groups: Sequence[Group]) -> str:
    exact = sum(group.exact for group in groups)
    near = len(groups) - exact
    return f" ({exact:,} exact, {near:,} near)" if exact and near else " (exact)" if exact else " (near)"


def _enumerated(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _short(text: str, width: int) -> str:
    """Return the end of a text, which is what tells paths apart.

    >>> _short("a/long/path/to/1.jpg", 10)
    '…/to/1.jpg'
    """
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def _bullet(mark: str, text: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH, initial_indent=f"  {mark} ", subsequent_indent="    ")
    return [line.replace(TIE, " ") for line in lines]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
