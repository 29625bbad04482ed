"""The report of a run: for every kind of method and data."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from graphmsda import METHODS, UserError
from graphmsda.cli import main
from graphmsda.methods import complete_parameters
from graphmsda.report.centres import joint_of, weigh
from graphmsda.report.gallery import disputed
from graphmsda.report.material import COUNT, gather
from graphmsda.report.page import MOST_BYTES
from graphmsda.report.repetition import fit_command
from graphmsda.report.run_page import run_report
from graphmsda.run import Run
from tests.report.runs import CLASSES, QUICK, train, write_features, write_images

VOID = {"meta", "link", "img", "br", "input", "path", "use", "circle", "rect", "line"}


class Tree(HTMLParser):
    """Checks that elements are closed in the order in which they were opened, and that no anchor is there twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.unnamed: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(given["id"] or "")
        if tag == "a" and (given.get("href") or "").startswith("#"):
            self.links.append((given["href"] or "")[1:])
        if (tag == "img" and given.get("alt") is None) or (given.get("role") == "img" and not given.get("aria-label")):
            self.unnamed.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def sections(text: str) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", text)


@pytest.mark.parametrize("method", ["mrf", "crf", "source-only"])
def test_a_target_without_labels(image_runs: dict[str, Path], method: str) -> None:
    text = run_report(image_runs[method])
    tree = Tree(text)
    assert len(tree.ids) == len(set(tree.ids))
    assert set(tree.links) <= set(tree.ids)
    assert tree.unnamed == []
    assert "Accuracy on goal" not in text
    assert "Estimate without labels" in text or "could not be estimated" in text
    assert "There are no labels of the target" in text
    assert ("has no prototypes" in text) == (method == "source-only")
    assert ("has no joint posterior" in text) == (method != "mrf")
    assert len(text.encode()) < MOST_BYTES


def test_a_missing_package_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(UserError, match=r"Bokeh, which is not installed; run `pip install 'graphmsda\[report\]'`"):
        run_report(tmp_path / "nothing is looked at yet")


def test_the_accuracy_is_that_of_evaluate(image_runs: dict[str, Path], image_data: Path, image_report: Path) -> None:
    text = image_report.read_text(encoding="utf-8")
    result = Run.load(image_runs["mrf"]).evaluate(image_data / "goal.npz")
    assert f"Accuracy on goal</dt><dd><b>{100 * result.accuracy:.1f} %</b>" in text
    counts = [int(n) for row in result.confusion for n in row if n]
    matrix = text[text.index("True class by row") :].split("</table>")[0]
    assert [int(n) for n in re.findall(r">(\d+)</td>", matrix)] == counts


def test_it_has_all_that_it_promises(image_report: Path) -> None:
    assert sections(image_report.read_text(encoding="utf-8")) == [
        "Overview",
        "Training",
        "Classes",
        "Confusion matrix",
        "Learned domain combination",
        "Class-by-domain probabilities",
        "Nearest to each prototype",
        "Prototype adjacency",
        "Embedding map",
        "Images worth a look",
        "Data warnings",
        "How to do it again",
    ]


def test_every_loss_term_has_a_curve(image_runs: dict[str, Path], image_report: Path) -> None:
    text = image_report.read_text(encoding="utf-8")
    training = text[text.index('<section id="training"') : text.index('<section id="classes"')]
    terms = set(Run.load(image_runs["mrf"]).history()[-1]) - {"step", "epoch", "seconds", "lr", "gradient"}
    assert {"source", "entropy", "likelihood", "clique"} <= terms
    assert set(re.findall(r"<strong>(.*?)</strong>", training)) == terms


def test_names_are_text_wherever_they_stand(image_report: Path) -> None:
    text = image_report.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_copies_between_domains_are_warned_of(image_data: Path, tmp_path: Path) -> None:
    copied = [tmp_path / "one.npz", tmp_path / "two.npz", tmp_path / "goal.npz"]
    for place in copied:
        shutil.copy(image_data / ("goal.npz" if place.stem == "two" else place.name), place)
    text = run_report(train(tmp_path, "source-only", copied[:2], copied[2]))
    assert "24 images lie in more than one domain" in text


def test_features_without_images(tmp_path: Path) -> None:
    places = [write_features(tmp_path / f"{name}.npz", shift, CLASSES, seed=shift) for shift, name in enumerate("abc")]
    text = run_report(train(tmp_path, "mrf", places[:2], places[2]), data=str(places[2]))
    Tree(text)
    assert "there is nothing to look at" in text
    assert "Samples worth a look" in text
    assert "<img" not in re.sub(r'<img class="heat"', "", text)


@pytest.mark.parametrize(("classes", "method"), [(2, "crf"), (345, "mrf")])
def test_few_classes_and_many(tmp_path: Path, classes: int, method: str) -> None:
    names = [f"class {number}" for number in range(classes)]
    places = [write_features(tmp_path / f"{n}.npz", k, names, count=4, seed=k) for k, n in enumerate("abc")]
    text = run_report(train(tmp_path, method, places[:2], places[2]), data=str(places[2]))
    Tree(text)
    assert len(text.encode()) < MOST_BYTES
    assert f"classifier of {classes} classes" in text


def test_one_source_leans_on_itself(image_data: Path, tmp_path: Path) -> None:
    text = run_report(train(tmp_path, "source-only", [image_data / "one.npz"], image_data / "goal.npz"))
    assert "There is one source, one: all lean on it." in text


def test_data_that_are_gone_leave_a_report(image_data: Path, tmp_path: Path) -> None:
    moved = [Path(shutil.copy(image_data / f"{name}.npz", tmp_path)) for name in ("one", "two", "goal")]
    run = train(tmp_path, "mrf", moved[:2], moved[2])
    for file in moved:
        file.unlink()
    with_labels = run_report(run, data=str(image_data / "goal.npz"))
    Tree(with_labels)
    assert "What the training data would show is left out" in with_labels
    assert "Accuracy on goal" in with_labels
    text = run_report(run)
    Tree(text)
    assert "Sections on data are left out" in text
    assert sections(text) == ["Overview", "Training", "Prototype adjacency", "Data warnings", "How to do it again"]


def test_changed_data_are_told(image_data: Path, tmp_path: Path) -> None:
    places = [Path(shutil.copy(image_data / f"{name}.npz", tmp_path)) for name in ("one", "two", "goal")]
    run = train(tmp_path, "source-only", places[:2], places[2])
    write_images(places[0], 70, CLASSES, seed=9)
    assert "the data have changed since the run was trained" in run_report(run)


def test_fewer_samples_are_looked_at_when_asked(image_runs: dict[str, Path], image_data: Path) -> None:
    run = Run.load(image_runs["mrf"])
    material = gather(run, data=str(image_data / "goal.npz"), count=10)
    assert material.target is not None
    assert len(material.target.rows) == 10
    assert len(gather(run, count=COUNT).target.rows) == 24  # type: ignore[union-attr]


def test_leaning_is_the_posterior_of_the_method(image_runs: dict[str, Path]) -> None:
    run = Run.load(image_runs["mrf"], device="cpu")
    material = gather(run)
    target = material.target
    assert target is not None
    with torch.inference_mode():
        joint = run.method.log_joint(target.embedding).exp()  # type: ignore[operator]
        assert torch.allclose(joint_of(material.centres, target.embedding), joint, atol=1e-5)
    assert torch.allclose(target.lean, joint.sum(2), atol=1e-5)
    assert torch.allclose(target.probabilities, joint.sum(1), atol=1e-5)
    # The matrices of the page, by a loop over queries.
    assert material.joint is not None
    for label in range(len(CLASSES)):
        rows = [joint[n].double() for n in range(len(target.best)) if int(target.best[n]) == label]
        if rows:
            assert torch.allclose(material.joint[label], sum(rows) / len(rows), atol=1e-5)  # type: ignore[arg-type]


def test_dispute_is_mutual_information() -> None:
    joint = torch.rand(6, 3, 4, dtype=torch.float64)
    joint /= joint.sum((1, 2), keepdim=True)
    _, votes, dispute = weigh(joint)
    for q in range(6):
        total = 0.0
        for m in range(3):
            for k in range(4):
                p = float(joint[q, m, k])
                total += p * torch.tensor(p / float(joint[q, m].sum() * joint[q, :, k].sum())).log2().item()
        assert float(dispute[q]) == pytest.approx(total, abs=1e-6)
        assert [int(joint[q, m].argmax()) for m in range(3)] == votes[q].tolist()


def test_the_command_trains_the_same_run(image_runs: dict[str, Path], image_data: Path) -> None:
    import shlex

    from graphmsda.cli import build_parser, given_settings

    run = Run.load(image_runs["mrf"])
    words = shlex.split(fit_command(run.about, gather(run).task))
    given = build_parser().parse_args(words[1:])
    assert [Path(place).name for place in given.sources] == ["one.npz", "two.npz"]
    settings = given_settings(given)
    for name, value in settings.items():
        if name != "parameters":
            assert run.about["settings"][name] == value, name
    assert settings["steps_per_epoch"] == 3
    assert "precision" not in settings


def test_the_command_names_no_default_of_trained_weights(image_runs: dict[str, Path]) -> None:
    about = Run.load(image_runs["mrf"]).about
    settings = about["settings"] | {"method": "crf", "backbone": "resnet18", "weights": "imagenet"}
    for trained in (True, False):
        parameters = complete_parameters("crf", {}, pretrained=trained)
        words = fit_command(about | {"settings": settings | {"parameters": parameters}})
        assert ("--set edge_weight=1 " in words) != trained


def test_a_study_or_nothing(tmp_path: Path, image_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = str(image_runs["mrf"])
    for words, told in {
        (str(tmp_path / "nowhere"),): "no such folder",
        (str(tmp_path),): "no study",
        (str(tmp_path), "--count", "50"): "--count was given for a study",
        (run, "-o", "page.pdf"): "not that of a web page",
        (run, "--count", "1"): "out of range",
        (run, "--format", "npz"): "without --data",
        (run, "--data", str(tmp_path / "x.npz")): "x.npz",
    }.items():
        assert main(["report", *words]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert told in said[-1]


def test_the_page_lies_in_the_folder_by_default(
    image_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(image_runs["source-only"])]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    assert (image_runs["source-only"] / "report.html").is_file()


def test_the_commands_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_cli import make_domain
    from tests.test_docs import typed

    for number, name in enumerate(("shop", "studio", "phone", "phone-labelled")):
        make_domain(tmp_path / name, 20 + 40 * number, count=4, seed=number)
    monkeypatch.chdir(tmp_path)
    words = [line.split() for line in typed("docs/report.md") if line.startswith("graphmsda")]
    mine = [one for one in words if "runs/mine" in one]
    assert [one[1] for one in mine[:3]] == ["fit", "report", "report"]
    for one in mine:
        assert main([*one[1:], *(QUICK if one[1] == "fit" else [])]) == 0
    assert "Accuracy on phone" in Path("with-labels.html").read_text(encoding="utf-8")
    assert "Accuracy on phone" not in Path("runs/mine/report.html").read_text(encoding="utf-8")


def test_the_most_disputed_come_first(image_runs: dict[str, Path]) -> None:
    target = gather(Run.load(image_runs["crf"], device="cpu")).target
    assert target is not None
    order = disputed(target).tolist()
    against = []
    for place in range(len(order)):
        pairs = zip(target.votes[place].tolist(), target.weights[place].tolist(), strict=True)
        against.append(sum(weight for vote, weight in pairs if vote != int(target.best[place])))
    assert sorted(order) == list(range(len(order)))
    assert all(against[one] > against[two] - 1e-6 for one, two in itertools.pairwise(order))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_report(image_data: Path, tmp_path: Path, method: str) -> None:
    places = [image_data / f"{name}.npz" for name in ("one", "two", "goal")]
    text = run_report(train(tmp_path, method, places[:2], places[2]), data=str(places[2]))
    Tree(text)  # refuses what is not closed
    assert method in text
