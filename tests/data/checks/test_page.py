import pytest

from graphmsda.data.checks.page import report_page
from graphmsda.data.checks.report import DomainReport, Group, Member, Report, Sizes


def domain(name, classes, **changes):
    totals = {}
    for counts in classes.values():
        for label, count in counts.items():
            totals[label] = totals.get(label, 0) + count
    ranked = sorted(totals.items(), key=lambda pair: pair[1])
    values = {
        "name": name,
        "origins": (f"/data/{name}.zip",),
        "count": sum(totals.values()),
        "parts": {part: sum(counts.values()) for part, counts in classes.items() if part != "all"},
        "classes": classes,
        "largest": ranked[-1] if ranked else None,
        "smallest": ranked[0] if ranked else None,
        "missing": (),
        "unreadable": 0,
        "unreadable_examples": {},
        "sizes": Sizes((180, 640, 4000), (120, 480, 3000), 2345, (640, 480), 99),
        "nearly_constant": 0,
        "nearly_constant_examples": (),
        "features": None,
        "range": None,
        "not_finite": 0,
        "notes": (),
        "sheet": None,
    }
    return DomainReport(**{**values, **changes})


def report(domains, classes, groups=(), **changes):
    return Report(tuple(domains), tuple(classes), tuple(groups), **{"complete": True, "notes": (), **changes})


def widest(page):
    return max(map(len, page.splitlines()))


def test_345_classes_in_six_domains_are_summed_up():
    classes = [f"thing number {number}" for number in range(345)]
    counts = {name: 10 + number for number, name in enumerate(classes)}
    domains = [
        domain(name, {"train": counts, "test": dict(list(counts.items())[:-7])}, missing=tuple(classes[:20]))
        for name in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    ]
    page = report_page(report(domains, classes))
    assert widest(page) <= 100
    assert len(page.splitlines()) < 80
    assert "clipart lacks 20 of 345 classes: thing number 0, thing number 1, thing number 2" in page
    row = next(line for line in page.splitlines() if line.split()[:2] == ["clipart", "test"])
    assert row.split()[2:] == ["338", "10", "178", "347"]
    assert "fewest thing number 0 (20)" in page
    assert "--json" in page


def test_many_domains_go_below_one_another():
    classes = ["cat", "dog", "a class with a name that is longer than anyone would want to read in a table"]
    counts = {"train": dict.fromkeys(classes, 25_000), "test": {"cat": 9_000}}
    page = report_page(report([domain(f"domain-{number}", counts) for number in range(12)], classes))
    assert widest(page) <= 100
    assert page.count("Classes, continued") >= 1
    assert page.count("25,000") == 12 * 3
    assert page.count("·") == 12 * 2


def test_long_names_keep_the_end_that_tells_them_apart():
    member = Member("somewhere", "train", "dog", "/data/somewhere.zip/" + "deep/" * 40 + "1.jpg")
    other = Member("somewhere", "test", "dog", "/elsewhere/" + "deep/" * 40 + "2.jpg")
    page = report_page(report([domain("somewhere", {"all": {"dog": 3}})], ["dog"], [Group(True, (member, other))]))
    assert widest(page) <= 100
    assert "…" in page
    assert "deep/1.jpg" in page
    assert "deep/2.jpg" in page


def test_names_are_shown_from_below_the_domain():
    copies = [Member("x", None, None, f"/data/x.zip/cat/{number}.png") for number in range(9)]
    page = report_page(report([domain("x", {})], [], [Group(False, tuple(copies))]))
    assert "  near  x    cat/0.png" in page
    assert "and 5 more" in page
    assert "/data/x.zip/cat" not in page


def test_a_large_group_shows_what_makes_it_matter():
    copies = [Member("a", "train", "cat", f"{number}.png") for number in range(50)]
    copies.append(Member("b", "test", "dog", "leaked.png"))
    page = report_page(report([domain("a", {}), domain("b", {})], [], [Group(True, tuple(copies))]))
    assert "leaked.png" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"unreadable": 3, "unreadable_examples": {"1.png": "truncated"}},
            "x: 3 unreadable, such as 1.png (truncated)",
        ),
        ({"nearly_constant": 1, "nearly_constant_examples": ("2.png",)}, "x: 1 image of one colour, such as 2.png"),
        ({"missing": ("fish",)}, "x lacks 1 of 2 classes: fish"),
        ({"features": 4, "not_finite": 1}, "x: 1 feature vector with values that are not finite"),
        ({"notes": ("labels were counted from 1",)}, "- labels were counted from 1"),
        ({"sheet": "sheets/x.png"}, "  sheets/x.png"),
    ],
)
def test_each_thing_amiss_has_a_sentence(changes, words):
    assert words in report_page(report([domain("x", {"all": {"cat": 3}}, **changes)], ["cat", "fish"]))


def test_an_unfinished_search_and_unequal_lengths_are_told():
    domains = [domain("x", {}, features=4), domain("y", {}, features=5)]
    page = report_page(report(domains, [], complete=False))
    assert "different lengths" in page
    assert "not all were compared" in page
