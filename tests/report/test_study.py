"""The report of a study: every kind, finished or not, says what its folder holds and no more."""

from __future__ import annotations

import base64
import csv
import io
import json
import random
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from graphmsda import UserError
from graphmsda.cli import main
from graphmsda.report import study_tables
from graphmsda.report.page import MOST_BYTES
from graphmsda.report.study import study_page
from graphmsda.report.study_blocks import comparable, competitors
from graphmsda.report.study_choice import spearman
from graphmsda.report.study_origin import commands
from graphmsda.study import attempts
from graphmsda.study import commands as study_commands
from graphmsda.study.cells import RESULT, Cell, add_cells, open_study, read_study
from graphmsda.study.data import NOISE, Data
from graphmsda.study.formats import show
from graphmsda.study.grids import ablation_cells, sensitivity_cells, table_cells
from graphmsda.study.protocol import best_source
from graphmsda.study.significance import critical_difference, least_p
from graphmsda.study.space import Choice, Range, Space
from graphmsda.study.summary import tables
from graphmsda.study.trials import Search, make_trial
from tests.test_docs import typed
from tests.test_readme import ROOT, blocks

DIGITS = Data("digits-five")
ORIGIN = {
    "graphmsda": "0.1.0",
    "commit": "abc1234",
    "hardware": "x86_64, 2 cores",
    "torch": "2.6.0",
    "date": "2026-01-02",
}
LEVELS = {
    "source-only": 0.78,
    "adabn": 0.84,
    "dan": 0.82,
    "coral": 0.82,
    "dann": 0.84,
    "mcd": 0.86,
    "crf": 0.9,
    "mrf": 0.93,
}
HARD = {"mm": -0.12, "mt": 0.05, "up": 0.03, "sv": -0.06, "syn": 0.0}


def accuracy_of(cell: Cell) -> float:
    """Something that looks like results."""
    chance = random.Random(cell.path)
    value = LEVELS.get(cell.method, 0.8) + HARD.get(cell.target, 0.0) + chance.gauss(0, 0.012)
    value -= 0.06 if cell.source not in (None, "sv") else 0.0
    for name, setting in cell.varied.items():
        value += 0.03 * setting if isinstance(setting, bool) else 0.0
        value -= 0.4 * abs(setting - 0.1) if name == "tau" else 0.0
    return round(min(0.995, value), 6)


def write_study(
    out: Path,
    cells: Sequence[Cell],
    kind: str = "table",
    data: Data = DIGITS,
    *,
    accuracy: Callable[[Cell], float | None] = accuracy_of,
    failed: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write the folder of a study as if its cells had been run; those without an accuracy are not finished."""
    open_study(out, {"kind": kind, **data.about(), **(about or {})})
    add_cells(out, cells)
    for number, cell in enumerate(cells):
        value = None if cell.path in failed else accuracy(cell)
        if cell.path in failed:
            attempt = attempts.take(out / "cells" / cell.path)
            assert attempt is not None
            attempt.end(attempts.FAILED, f"{cell.label}: no <luck> & worse")
        if value is None:
            continue
        chance = random.Random(number)
        free = {"information": value + chance.gauss(0, 0.05), "mean_entropy": 1 - value, "share_confident": value / 2}
        minutes = round(1 + 3 * LEVELS.get(cell.method, 0.5) + chance.random() + 2 * (cell.method == "mrf"), 3)
        row = {"benchmark": data.benchmark, **cell.named(), "epochs": 30, "steps": 600, "backbone": "3conv-2fc",
               "batch_size": 128, "accuracy": value, "oracle_accuracy": None, "source_accuracy": 0.9,
               "label_free": free, "minutes": minutes, **ORIGIN, **more}  # fmt: skip
        if kind == "timing":
            times = [round(chance.uniform(2, 3) + number, 3) for _ in range(int(cell.varied["repeats"]))]
            row |= {"training": times, "inference": [one / 7 for one in times]}
        file = out / "runs" / cell.path / RESULT
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(row), encoding="utf-8")
    return out


def write_table(out: Path, methods: Sequence[str] = ("source-only", "dan", "crf", "mrf"), **more: Any) -> Path:
    seeds = more.pop("seeds", (0, 1, 2))
    return write_study(out, table_cells(DIGITS, methods, DIGITS.domains, seeds, {"epochs": 30}), **more)


def write_search(out: Path, score: str = "rehearsal") -> Path:
    """A search of three trials, the default first."""
    space: Space = {"tau": Range(0.01, 1.0, log=True), "alpha": Choice((0.1, 0.2, 0.3))}
    search = Search("mrf", space, score, "mm", [0, 1], {"epochs": 3})
    tried: list[dict[str, Any] | None] = [None, {"tau": 0.1, "alpha": 0.2}, {"tau": 0.5, "alpha": 0.3}]
    cells = [cell for values in tried for cell in search.cells(DIGITS, values)]
    write_study(out, cells, "search", about=search.about(), scores={"entropy": 0.25})
    for number, values in enumerate(tried, 1):
        assert make_trial(out, "mm", number, values, values or {"tau": 0.1, "alpha": 0.1})
    return out


def write_kinds(out: Path) -> dict[str, Path]:
    """A study of each kind."""
    timed = {"iterations": 100, "repeats": 5}
    times = [Cell("multi-source", NOISE, name, 0, varied=timed) for name in ("source-only", "mdan", "crf", "mrf")]
    values = {"tau": [0.01, 0.05, 0.1, 0.2, 0.4], "alpha": [0, 0.1, 1.0]}
    varied = sensitivity_cells(DIGITS, "mrf", values, ["mm", "sv", "up"], [0, 1, 2], {})
    return {
        "table": write_table(out / "table"),
        "ablation": write_study(out / "ablation", ablation_cells("crf", ["mm", "sv"], [0, 1, 2], {}), "ablation"),
        "sensitivity": write_study(out / "sensitivity", varied, "sensitivity"),
        "timing": write_study(out / "timing", times, "timing", Data(NOISE)),
    }


class Reader(HTMLParser):
    """Checks that elements close in order, and keeps tables, links and the text of sections."""

    VOID = ("meta", "link", "br", "img", "line", "path", "polyline", "polygon")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.links: dict[str, str] = {}
        self.sections: dict[str, str] = {}
        self.ids: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [str(given["id"])] if "id" in given else []
        if tag == "section":
            self.section = str(given["id"])
            self.sections[self.section] = ""
        if tag == "a" and given.get("download"):
            self.links[str(given["download"])] = str(given["href"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "br" and {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += " "
        if tag not in self.VOID or (tag == "path" and not self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "section" in self.open:
            self.sections[self.section] += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data


def read(folder: Path) -> Reader:
    text = study_page(folder)
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r'href="data:[^"]*"', "", text).replace("http-equiv", ""))
    assert "nan" not in re.findall(r'(?:points|d|x1?|y1?|transform)="[^"]*(nan|inf)', text)
    reader = Reader(text)
    assert len(set(reader.ids)) == len(reader.ids)
    return reader


@pytest.mark.parametrize("kind", ["table", "ablation", "sensitivity", "timing"])
def test_every_kind(kind: str, tmp_path: Path) -> None:
    page = read(write_kinds(tmp_path)[kind])
    assert next(iter(page.sections)) == "at-a-glance"
    assert "table-0" in page.sections
    made = page.sections["how-it-was-made"]
    for value in ("abc1234", "x86_64, 2 cores", "2.6.0", f"graphmsda study {kind}"):
        assert value in made
    assert ("ranks-and-significance" in page.sections) == (kind in ("table", "ablation"))
    assert ("time" in page.sections) == (kind == "table")
    assert "what-is-missing" not in page.sections


@pytest.mark.parametrize("score", ["rehearsal", "entropy"])
def test_a_search(score: str, tmp_path: Path) -> None:
    folder = write_search(tmp_path / "s", score)
    page = read(folder)
    assert "Best trial" in page.sections["at-a-glance"]
    head, *rows = page.tables[0]
    assert head[:3] == ["trial", "tau", "alpha"]
    assert score in head
    assert len(rows) == 3
    if score == "entropy":
        assert rows[0][head.index("entropy")].startswith("0.2500")
    (command,) = commands(read_study(folder))
    assert shlex.split(command)[:-2] == shlex.split(
        "graphmsda study search --benchmark digits-five --method mrf --param tau 0.01 1.0 log --param alpha 0.1 0.2 "
        f"0.3 --score {score} --trials 3 --targets mm --seeds 0 1 --epochs 3"
    )


def test_a_choice_among_values(tmp_path: Path) -> None:
    page = read(write_kinds(tmp_path)["sensitivity"])
    assert "ranks-and-significance" not in page.sections
    assert "entropy" in page.sections["choosing-without-labels"]


def test_numbers_are_those_of_the_table(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "s")
    page, printed = read(folder), tables(read_study(folder))[0]
    head, *body = page.tables[0]
    assert head == [
        "method",
        *(f"→ {name}" for name in DIGITS.domains),
        "average",
        "oracle chosen by labels",
    ]
    groups = [row[0] for row in body if len(row) == 1]
    assert groups == ["Single best", "Source combine", "Multi-source"]
    rows = [row for row in body if len(row) > 1]
    assert len(rows) == len(printed.lines)
    for row, line in zip(rows, printed.lines, strict=True):
        assert row[0] == line.labels[1]
        for text, column in zip(row[1:], printed.columns, strict=True):
            entry = line.entries[column]
            if entry.mean is None:
                assert text.startswith("–")
                continue
            assert text.startswith(f"{100 * entry.mean:.1f} ± {100 * (entry.std or 0):.1f}")
            assert (f"({100 * entry.paper[0]:.1f})" in text) if entry.paper else "(" not in text


def test_tables_can_be_saved(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "s")
    links = read(folder).links
    content = {name: base64.b64decode(link.partition("base64,")[2]).decode() for name, link in links.items()}
    assert sorted(content) == ["study-digits-five.csv", "study-digits-five.json", "study-digits-five.tex"]
    study = read_study(folder)
    assert content["study-digits-five.csv"].strip() == show(study, "csv")
    assert json.loads(content["study-digits-five.json"]) == json.loads(show(study, "json"))
    assert len(list(csv.DictReader(io.StringIO(content["study-digits-five.csv"])))) > 50
    assert content["study-digits-five.tex"].strip() == show(study, "latex")


def test_too_many_runs_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_table(tmp_path / "s")
    monkeypatch.setattr(study_tables, "MOST_RUNS", 1000)
    page = read(folder)
    content = json.loads(base64.b64decode(page.links["study-digits-five.json"].partition("base64,")[2]))
    assert content["runs"] == []
    assert content["tables"]
    assert "too many runs" in page.sections["table-0"]


def test_missing_and_failed_cells(tmp_path: Path) -> None:
    cells = table_cells(DIGITS, ["source-only", "mrf"], ["mm", "sv"], [0, 1], {}, standards=["multi-source"])
    bad = [cell.path for cell in cells if cell.method == "mrf" and (cell.target, cell.seed) == ("mm", 1)]
    folder = write_study(
        tmp_path / "s",
        cells,
        failed=bad,
        accuracy=lambda c: None if (c.target, c.seed) == ("sv", 0) else accuracy_of(c),
    )
    page = read(folder)
    missing = page.sections["what-is-missing"]
    assert "5 of 8 cells are finished, 1 failed, 2 are not done yet" in missing
    assert "no <luck> & worse" in missing
    assert "mrf -> sv, seed 0" in missing
    assert "2 blocks of 2 targets and 2 seeds; 1 more lack some method" in page.sections["ranks-and-significance"]
    assert "1/2" in page.sections["table-0"]
    assert "not finished" not in page.sections["table-0"]  # said once


@pytest.mark.parametrize("kind", ["table", "ablation", "sensitivity", "timing"])
def test_nothing_finished_yet(kind: str, tmp_path: Path) -> None:
    cells = {
        "table": table_cells(DIGITS, ["mrf", "dan"], ["mm"], [0], {}),
        "ablation": ablation_cells("mrf", ["mm"], [0], {}),
        "sensitivity": sensitivity_cells(DIGITS, "mrf", {"tau": [0.1, 0.2]}, ["mm"], [0], {}),
        "timing": [Cell("multi-source", NOISE, "mrf", 0, varied={"iterations": 1, "repeats": 1})],
    }[kind]
    data = Data(NOISE) if kind == "timing" else DIGITS
    page = read(write_study(tmp_path / "s", cells, kind, data, accuracy=lambda cell: None))
    assert f"0 of {len(cells)} cells are finished" in page.sections["what-is-missing"]
    assert "ranks-and-significance" not in page.sections
    read(write_study(tmp_path / "empty", [], kind, data))


def test_names_are_only_names(tmp_path: Path) -> None:
    odd = Data(None, (("<b>a</b>", "x"), ('c"d&e', "y"), ("plain $1", "z")))
    cells = table_cells(odd, ["source-only", "mrf"], odd.domains, [0, 1], {}, standards=["multi-source"])
    folder = write_study(tmp_path / "s", cells, data=odd, accuracy=lambda cell: 0.5 + 0.1 * (cell.method == "mrf"))
    page = read(folder)
    assert page.tables[0][0] == ["method", "→ <b>a</b>", '→ c"d&e', "→ plain $1", "average"]


def test_settings_that_are_words(tmp_path: Path) -> None:
    cells = sensitivity_cells(DIGITS, "mrf", {"schedule": ["cosine", "constant"]}, ["mm"], [0], {})
    page = read(write_study(tmp_path / "s", cells, "sensitivity"))
    assert "cosine" in page.sections["table-0"]
    one = sensitivity_cells(DIGITS, "mrf", {"tau": [0.1]}, ["mm"], [0], {})
    assert "table-0" in read(write_study(tmp_path / "one", one, "sensitivity")).sections


def asked(command: str, monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that a command asks for."""
    found: list[Cell] = []
    with monkeypatch.context() as patch:
        patch.setattr(study_commands, "_run", lambda given, kind, data, cells: found.extend(cells))
        words = shlex.split(command)
        assert words[0] == "graphmsda"
        assert main(words[1:]) == 0
    return found


def test_commands_ask_for_the_same_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = list(write_kinds(tmp_path).values())
    settings = {"epochs": 7, "batch_size": 4, "parameters": {"lambda_1": 3.0}}
    terms = ablation_cells("crf", ["mm"], [3], settings, terms=["local", "entropy"])
    folders.append(write_study(tmp_path / "terms", terms, "ablation"))
    several = {"N_neg": [9, 20], "lr": [0.001, 0.01], "tau": [0.1, 0.3]}
    values = sensitivity_cells(DIGITS, "mrf", several, ["mm"], [0], {"parameters": {"alpha": 0.5}})
    folders.append(write_study(tmp_path / "values", values, "sensitivity"))
    mixed = table_cells(DIGITS, ["mrf"], ["sv"], [5], {}) + table_cells(DIGITS, ["dan"], ["mm"], [0], {"epochs": 2})
    mixed += table_cells(DIGITS, ["source-only"], ["mm"], [0], {}, standards=["multi-source"])
    folders.append(write_study(tmp_path / "mixed", mixed))
    alike = table_cells(DIGITS, ["source-only", "mrf"], ["mm"], [0], {}, standards=["multi-source"])
    folders.append(write_study(tmp_path / "alike", alike))
    assert [len(commands(read_study(folder))) for folder in (folders[0], folders[-2], folders[-1])] == [1, 3, 1]
    for folder in folders:
        study = read_study(folder)
        found = [cell for command in commands(study) for cell in asked(command, monkeypatch)]
        assert {cell.path: cell.fixed for cell in found} == {cell.path: cell.fixed for cell in study.cells}


def test_a_table_with_recipes_says_so(tmp_path: Path) -> None:
    cells = table_cells(DIGITS, ["mrf"], ["mm"], [0], {"parameters": {"tau": 0.2}})
    made = read(write_study(tmp_path / "s", cells)).sections["how-it-was-made"]
    assert "--recipes FOLDER" in made
    assert "tau=0.2" in made


def write_pair(out: Path, targets: Sequence[str], seeds: Sequence[int], gain: float = 0.1) -> Path:
    cells = table_cells(DIGITS, ["source-only", "mrf"], targets, seeds, {}, standards=["multi-source"])
    return write_study(out, cells, accuracy=lambda c: 0.5 + gain * (c.method == "mrf") + 0.01 * c.seed)


def ranks_of(folder: Path) -> str:
    return read(folder).sections["ranks-and-significance"]


def test_too_few_blocks_are_admitted(tmp_path: Path) -> None:
    text = ranks_of(write_pair(tmp_path / "a", ["mm"], [0]))
    assert "Too few blocks" in text
    assert "at least 6 blocks" in text
    assert "There is one target" in text
    assert "There is one seed" in text
    assert "may be chance" in text
    text = ranks_of(write_pair(tmp_path / "b", list(DIGITS.domains), [0, 1]))
    assert "Too few" not in text
    assert "significantly better than every other" in text
    assert "takes the 5 targets as blocks" in text


def test_equal_methods_are_not_told_apart(tmp_path: Path) -> None:
    folder = write_pair(tmp_path / "a", list(DIGITS.domains), [0, 1], gain=0.0)
    text = ranks_of(folder)
    assert "may be chance" in text
    assert "p = 1.00" in text
    assert "0 of 1" in read(folder).sections["at-a-glance"]


def test_many_methods_need_many_blocks(tmp_path: Path) -> None:
    cells = table_cells(DIGITS, list(LEVELS), ["mm"], [0], {}, standards=["multi-source"])
    text = ranks_of(write_study(tmp_path / "s", cells))
    (enough,) = re.findall(r"cannot separate any\. It takes at least (\d+) blocks", text)
    size = len(LEVELS)
    assert critical_difference(size, int(enough)) < size - 1 <= critical_difference(size, int(enough) - 1)


def test_competitors_and_blocks(tmp_path: Path) -> None:
    cells = table_cells(DIGITS, ["source-only", "dan", "mrf", "crf"], ["mm", "sv"], [0, 1], {})

    def accuracy(cell: Cell) -> float | None:
        few = cell.method == "crf" and (cell.target, cell.seed) != ("mm", 0)
        late = cell.method == "mrf" and (cell.target, cell.seed) == ("sv", 1)
        return None if few or late else accuracy_of(cell)

    folder = write_study(tmp_path / "s", cells, accuracy=accuracy)
    for cell in cells:  # the source that a choice without labels takes is not the best one
        file = folder / "runs" / cell.path / RESULT
        if cell.source == "mt":
            file.write_text(json.dumps(json.loads(file.read_text()) | {"label_free": {"information": 9.0}}))
    study = read_study(folder)
    found = competitors(study)
    assert [one.name for one in found] == [
        "Source-only, single best", "DAN, single best", "Source-only, source combine", "DAN, source combine",
        "Source-only, multi-source", "CRF-MSDA", "MRF-MSDA",
    ]  # fmt: skip
    first = found[0]
    runs = [row for row in study.rows.values() if (row["standard"], row["method"]) == ("single-best", "source-only")]
    at = [row for row in runs if (row["target"], row["seed"]) == ("mm", 0)]
    assert first.minutes["mm", 0] == pytest.approx(sum(row["minutes"] for row in at))
    source = best_source([row for row in runs if row["target"] == "mm"])
    assert source == "mt" != best_source([row for row in runs if row["target"] == "mm"], oracle=True)
    assert first.accuracy["mm", 0] == next(row["accuracy"] for row in at if row["source"] == source)
    field = comparable(found)
    assert field.left_out == ("CRF-MSDA",)
    assert field.blocks == (("mm", 0), ("mm", 1), ("sv", 0))
    assert field.dropped == 1
    assert field.scores.shape == (3, 6)
    assert field.by_target()[0].tolist() == pytest.approx(field.scores[:2].mean(0).tolist())


def test_choices_without_labels_by_hand(tmp_path: Path) -> None:
    cells = table_cells(DIGITS, ["source-only", "crf", "mrf"], ["mm"], [0, 1], {}, standards=["multi-source"])
    folder = write_study(tmp_path / "s", cells)
    accuracy = {"source-only": 0.5, "crf": 0.8, "mrf": 0.9}
    score = {"source-only": (0.1, 0.3), "crf": (0.9, 0.2), "mrf": (0.5, 0.4)}  # information, by seed
    for cell in cells:
        file = folder / "runs" / cell.path / RESULT
        row = json.loads(file.read_text())
        row |= {"accuracy": accuracy[cell.method], "source_accuracy": None, "oracle_accuracy": 0.95}
        row["label_free"] = {"information": score[cell.method][cell.seed]}
        row["scores"] = {"entropy": -score[cell.method][cell.seed]}  # of which less is better
        file.write_text(json.dumps(row))
    page = read(folder)
    chosen = next(one for one in page.tables if one[0][0] == "chosen by")
    # Seed 0 takes crf (0.8, order off by one), seed 1 takes mrf (0.9).
    correlation = (0.5 + 0.5) / 2
    line = ["85.0", "90.0", "5.0", f"{correlation:+.2f}", "2"]
    assert chosen[1:] == [["entropy", *line], ["information", *line]]
    oracle = next(one for one in page.tables if "best step, %" in one[0])
    assert oracle[-1] == ["MRF-MSDA", "90.0", "95.0", "5.0", "2"]


def test_spearman_is_scipys() -> None:
    chance = random.Random(0)
    for size in (2, 5, 12):
        first, second = ([round(chance.random(), 1) for _ in range(size)] for _ in range(2))
        first[0], second[0] = 1.5, -1.0
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert spearman([0.5, 0.5], [0.1, 0.2]) is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pair(tmp_path / "s", ["mm"], [0])
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert str(tmp_path / "page.html") in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == study_page(folder)
    assert study_page(folder) == study_page(folder)


def test_what_the_page_tells_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, report = [line for line in typed("docs/report.md") if "studies/demo" in line]
    cells = asked(table, monkeypatch)
    assert len(cells) == 45
    monkeypatch.chdir(tmp_path)
    write_study(Path("studies/demo"), cells, data=Data("demo"))
    assert main(shlex.split(report)[1:]) == 0
    made = Reader(Path("study.html").read_text(encoding="utf-8")).sections["how-it-was-made"]
    assert "graphmsda study table --benchmark demo --methods source-only adabn dann crf mrf --targets neon" in made
    for code in blocks("docs/report.md", "python"):
        exec(compile(code, "docs/report.md", "exec"), {})
    assert "('mrf', 'crf', " in capsys.readouterr().out


def test_numbers_on_the_page() -> None:
    text = " ".join((ROOT / "docs" / "report.md").read_text(encoding="utf-8").split())
    assert "with fewer than 6 blocks" in text
    assert "with 3, 5, 7 and 12 methods it takes at least 7, 9, 10 and 12 blocks" in text
    for methods, least in ((2, 6), (3, 7), (5, 9), (7, 10), (12, 12)):
        pairs = methods * (methods - 1) // 2
        assert least_p(least) * pairs < 0.05 <= least_p(least - 1) * pairs


def test_a_folder_that_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no study"):
        study_page(tmp_path)
