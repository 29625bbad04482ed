"""Every recipe is read and agrees with the paper's Table 1; one of each benchmark trains on a small generated tree."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from graphmsda import METHODS
from graphmsda.backbones import build_backbone
from graphmsda.cli import main
from graphmsda.data.benchmarks.catalogue import BENCHMARKS, find_benchmark, task_names
from graphmsda.engine.settings import Settings, read_recipe
from graphmsda.reading import recipe_data
from graphmsda.run import Run
from tests.conftest import image_task
from tests.data.benchmarks.trees import folder_of, picture
from tests.test_readme import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*/*.yaml"))
# Table 1: image size, backbone, batch size, learning rate, epochs, size of the embedding.
TABLE_1 = {
    "digits-five": (32, "3conv-2fc", 128, 2e-4, 100, 2048),
    "office-31": (252, "alexnet", 16, 5e-5, 100, 4096),
    "pacs": (224, "resnet18", 16, 5e-5, 100, 512),
    "domainnet": (224, "resnet101", 16, 5e-5, 20, 2048),
}
NAMES = ("source-only", "adabn", "crf", "mrf", "mrf-plus", "crf-paper", "mrf-paper")
# Hyper-parameters of a method that differ on one benchmark, chosen by leave-one-source-out.
OWN = {"digits-five/adda": {"adapt_rate": 0.003}, "digits-five/mdda": {"adapt_rate": 0.03}}


def identity(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_each_benchmark_has_each_recipe() -> None:
    there = {(find_benchmark(path.parent.name).name, path.stem) for path in RECIPES}
    assert {(benchmark, name) for benchmark in BENCHMARKS for name in NAMES} <= there


@pytest.mark.parametrize("path", RECIPES, ids=identity)
def test_recipe_is_table_1(path: Path) -> None:
    benchmark = find_benchmark(path.parent.name)
    size, backbone, batch, rate, epochs, _ = TABLE_1[benchmark.name]
    data, given = recipe_data(path), read_recipe(path)[1]
    assert data["task"] in task_names()
    assert data["task"].startswith(f"{benchmark.name}:")
    assert data["image_size"] == size == benchmark.image_size  # what `--task` alone would read it at
    classes = min(benchmark.classes, 12)
    task = image_task(sources=len(benchmark.domains) - 1, classes=classes, size=2 * classes, side=size)
    settings = Settings(**given).resolved(task)
    assert (settings.backbone, settings.batch_size, settings.lr) == (backbone, batch, rate)
    assert (settings.optimiser, settings.weight_decay) == ("adam", 5e-4)
    paper = path.stem.endswith("-paper")
    assert settings.method == path.stem.removesuffix("-paper")
    assert settings.method in METHODS
    assert (settings.schedule, settings.preset) == (("constant", "paper") if paper else ("cosine", None))
    assert settings.epochs == epochs if paper else settings.epochs < epochs
    if not paper:  # what one types without a recipe is the same, but for the number of epochs
        own = {"parameters": OWN.get(identity(path), {})}
        plain = Settings(method=settings.method, backbone=benchmark.backbone, epochs=settings.epochs, **own)
        assert settings == plain.resolved(task)


@pytest.mark.parametrize("name", TABLE_1)
def test_backbone_has_the_embedding_of_table_1(name: str) -> None:
    size, backbone, _, _, _, features = TABLE_1[name]
    with torch.device("meta"):
        assert build_backbone(backbone, (3, size, size), 3).features == features


@pytest.mark.parametrize("path", RECIPES, ids=identity)
def test_recipe_says_how_it_is_run(path: Path) -> None:
    """The command in its head names itself, its own benchmark and what a comment says of the paper."""
    text = path.read_text(encoding="utf-8")
    (command,) = re.findall(r"^#   graphmsda (.*)$", text, re.MULTILINE)
    words = shlex.split(command)
    assert words[:3] == ["fit", "--config", f"recipes/{identity(path)}.yaml"]
    assert words[words.index("--task") + 1] == read_recipe(path)[0]["task"]
    benchmark = find_benchmark(path.parent.name)
    epochs, features = TABLE_1[benchmark.name][4:]
    assert f"d = {features}\n" in text
    assert f"; the paper: {epochs}\n" in text or f"epochs: {epochs} " in text
    (told,) = re.findall(r"Targets are (.*)\.", text)
    assert set(re.split(", | or ", told)) == set(benchmark.domains)


def small_tree(name: str, root: Path) -> Path:
    """Write a benchmark of few tiny pictures in the layout it is published in."""
    benchmark = BENCHMARKS[name]
    place = root / name
    for number, domain in enumerate(benchmark.domains):
        if name == "digits-five":
            folder = place / {"mt": "mnist", "mm": "mnistm", "up": "usps", "sv": "svhn", "syn": "syn"}[domain]
            for digit in range(10):
                for part, count in (("train", 2), ("test", 1)):
                    for n in range(count):
                        picture(folder / part / str(digit) / f"{n}.png", 20 * number + 10 * digit + n, 8)
            continue
        labels = [f"class_{k:03}" for k in range(7 if name == "pacs" else 3)]
        level = "images/" if name == "office-31" else ""
        folder_of(place / domain, [f"{level}{label}/{domain}_{n}.png" for label in labels for n in range(3)])
        if name == "domainnet":
            for part, chosen in (("train", (0, 1)), ("test", (2,))):
                lines = [f"{domain}/{label}/{domain}_{n}.png {k}\n" for k, label in enumerate(labels) for n in chosen]
                (place / f"{domain}_{part}.txt").write_text("".join(lines))
    return root


@pytest.mark.parametrize(
    ("recipe", "target", "smaller"),
    [
        ("digits-five/mrf", "digits-five:sv", ""),
        ("pacs/mrf-plus", "pacs:photo", "--image-size 64"),
        # Networks of hundreds of megabytes are not for a test: it is the rest of the recipe that trains.
        ("office31/crf", "office-31:dslr", "--image-size 32 --backbone small"),
        ("domainnet/mrf-paper", "domainnet:quickdraw", "--image-size 32 --backbone small"),
    ],
)
def test_recipe_trains_any_cell(
    recipe: str, target: str, smaller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command, shortened, on another target than the recipe's own."""
    file = ROOT / "recipes" / f"{recipe}.yaml"
    data, given = read_recipe(file)
    assert data["task"] != target
    small_tree(target.partition(":")[0], tmp_path)
    monkeypatch.setenv("GRAPHMSDA_CACHE", str(tmp_path / "cache"))
    shorter = "--epochs 1 --steps-per-epoch 2 --batch-size 2 --weights none --seed 3 --device cpu"
    words = ["--config", str(file), "--task", target, "--data-root", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main(["fit", *words, *shlex.split(f"{shorter} {smaller}")]) == 0
    run = Run.load(tmp_path / "run", device="cpu")
    assert run.about["steps"] == 2
    assert run.domains[-1] == target.partition(":")[2]
    assert run.about["data"]["task"] == target
    typed = {"epochs", "batch_size", "weights"} | ({"backbone"} if "--backbone" in smaller else set())
    kept = {name: value for name, value in given.items() if name not in typed}
    assert {name: run.about["settings"][name] for name in kept} == kept
