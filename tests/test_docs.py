"""What the pages in docs/ tell a user to type, run as it stands there on small generated data."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image, ImageFont

from graphmsda.cli import main
from graphmsda.data.benchmarks import digits_five, domainnet, office31, pacs
from graphmsda.data.benchmarks.catalogue import BENCHMARKS
from graphmsda.data.obtain import prepare
from tests.test_cli import make_domain
from tests.test_readme import ROOT, blocks

CLASSES = ("bottle", "chair", "mug")
DIGITS = tuple("0123456789")


def typed(page: str) -> list[str]:
    """Return the commands of a page, a line each."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [re.sub(r"\s+#.*", "", line) for line in text.splitlines() if line and not line.startswith("#")]


def pack(folder: Path) -> None:
    """Pack a folder into a zip and a tar file beside it."""
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive, tarfile.open(f"{folder}.tar.gz", "w:gz") as tar:
        for file in sorted(folder.rglob("*.*")):
            archive.write(file, file.relative_to(folder))
            tar.add(file, file.relative_to(folder.parent))


def arrays_of(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    files = sorted(folder.glob("*/*.*"))
    x = np.stack([np.asarray(Image.open(file).convert("RGB").resize((24, 20))) for file in files])
    return x, np.array([file.parent.name for file in files])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every form of data that docs/data.md speaks of."""
    for number, name in enumerate(("shop", "studio", "phone")):
        make_domain(tmp_path / name, 20 + 60 * number, seed=number, classes=CLASSES)
    make_domain(tmp_path / "phone-labelled", 140, seed=9, count=3, classes=CLASSES)
    shutil.copytree(tmp_path / "phone-labelled", tmp_path / "new-pictures")
    for number, file in enumerate(sorted((tmp_path / "phone").rglob("*.*"))):
        file.rename(tmp_path / "phone" / f"IMG_{number:04}{file.suffix}")
    for name in CLASSES:
        shutil.rmtree(tmp_path / "phone" / name)
    for file in sorted((tmp_path / "studio").rglob("*.*")):  # the forms below are of one level
        file.rename(tmp_path / "studio" / file.relative_to(tmp_path / "studio").parts[0] / file.name)
    for part, seed in (("train", 5), ("test", 6)):
        make_domain(tmp_path / "split" / part, 80, seed=seed, count=4, classes=CLASSES)
    pack(tmp_path / "shop")
    files = sorted((tmp_path / "studio").glob("*/*.*"))
    for part, chosen in (("train", files[::2]), ("test", files[1::2])):
        lines = [f"{file.relative_to(tmp_path)} {CLASSES.index(file.parent.name)}\n" for file in chosen]
        (tmp_path / f"studio_{part}.txt").write_text("".join(lines))
    write_tables(tmp_path)
    (tmp_path / "studio" / "mug" / "broken.jpg").touch()
    shutil.copy(tmp_path / "shop" / "chair" / "0.jpg", tmp_path / "phone" / "copied.jpg")
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "my-resnet18.pth")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHMSDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GRAPHMSDA_DATA", str(tmp_path / "data-root"))
    return tmp_path


def write_tables(folder: Path) -> None:
    """Write arrays and tables of images and of feature vectors."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import scipy.io

    x, y = arrays_of(folder / "studio")
    np.savez(folder / "studio.npz", x=x, y=y)
    numbers = np.array([CLASSES.index(name) + 1 for name in y])
    scipy.io.savemat(folder / "studio.mat", {"X": x.transpose(1, 2, 3, 0), "y": numbers[:, None]})
    files = sorted((folder / "studio").glob("*/*.*"))
    pictures = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    pq.write_table(pa.table({"image": pictures, "label": y.tolist()}), folder / "studio.parquet")
    with (folder / "studio.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split"])
        for number, path in enumerate(files):
            part = "test" if number % 4 == 0 else "train"
            rows.writerow([path.relative_to(folder), path.parent.name, part])
    chance = np.random.default_rng(0)
    for shift, name in enumerate(("shop", "studio", "phone")):
        with (folder / f"{name}-features.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["label", "f0", "f1", "f2", "f3"])
            for number in range(30):
                vector = chance.normal(size=4) + 4 * (number % 3) + shift
                rows.writerow([CLASSES[number % 3], *(f"{value:.4f}" for value in vector)])


def test_data_page_commands(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = typed("docs/data.md")
    assert len(commands) >= 15
    assert all(line.startswith("graphmsda ") for line in commands)
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, line
        output = capsys.readouterr()
        assert output.out, line
        assert "nothing amiss" in output.out or " check " not in line or "shop studio phone" in line
        if line == "graphmsda data check shop studio phone":
            (excerpt,) = blocks("docs/data.md", "text")
            assert output.out.startswith(excerpt)
    assert len((place / "predictions.csv").read_text().splitlines()) == 10


def test_data_page_python(place: Path) -> None:
    (code,) = blocks("docs/data.md", "python")
    names: dict[str, object] = {}
    exec(compile(code, "docs/data.md", "exec"), names)
    assert any("using its train part" in note for note in names["notes"])  # type: ignore[attr-defined]
    assert names["again"].classes == CLASSES  # type: ignore[attr-defined]


# --- docs/benchmarks.md -----------------------------------------------------------------------------------------------

# Whole runs and full-sized sets take hours: what is added to a command so that it takes seconds.
SHORTER = {
    "fit": "--epochs 1 --steps-per-epoch 1 --batch-size 4 --backbone small --weights none --image-size 32",
    "render-digits": "--train 40 --test 20",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small benchmarks below its data root, which is `data/`."""
    for number, name in enumerate(("mnist", "mnistm", "usps", "svhn", "syn")):
        folder = tmp_path / "data" / "digits-five" / name
        for part, count, seed in (("train", 4, number), ("test", 2, number + 10)):
            make_domain(folder / part, 20 + 40 * number, count=count, classes=DIGITS, seed=seed)
        pack(folder)
        shutil.rmtree(folder)
        if name in ("mnistm", "syn"):  # in a form that goes after what the page's commands write
            (folder.with_suffix(".zip")).unlink()
    things = tuple(f"thing_{number}" for number in range(31))
    for number, name in enumerate(BENCHMARKS["office-31"].domains):
        folder = tmp_path / "data" / "office-31" / name / "images"
        make_domain(folder, 20 + 40 * number, count=2, classes=things, seed=number)
    for number, name in enumerate(BENCHMARKS["pacs"].domains):
        make_domain(tmp_path / "data" / "pacs" / name, 20 + 40 * number, count=3, classes=things[:7], seed=number)
    chance = np.random.default_rng(0)
    (tmp_path / "photographs").mkdir()
    for number in range(4):
        pixels = chance.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photographs" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHMSDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GRAPHMSDA_DATA", str(tmp_path / "data"))
    return tmp_path


def test_benchmarks_page_commands(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be fetched")

    monkeypatch.setattr(prepare, "fetch", refuse)
    commands = typed("docs/benchmarks.md")
    assert len(commands) >= 10
    for line in commands:
        words = shlex.split(line)[1:]
        more = SHORTER.get(words[1] if words[0] == "data" else words[0], "")
        if words[1] == "render-digits":
            more += f" --fonts {font(root)}"
        assert main([*words, *shlex.split(more)]) == 0, line
        assert capsys.readouterr().out, line
    # What the page says of records, and the excerpt in it, is in the record of the run with stand-ins.
    assert main(["fit", "--task", "digits-five:mt", "--out", "runs/again", *shlex.split(SHORTER["fit"])]) == 0
    assert capsys.readouterr().err.count("re-synthesised, so not comparable") == 2
    written = (root / "runs" / "again" / "config.yaml").read_text()
    (excerpt,) = blocks("docs/benchmarks.md", "text")
    for line in excerpt.splitlines():
        assert f"\n{line}\n" in written, line


def font(folder: Path) -> Path:
    """Return the font that Pillow carries, so that none need be installed."""
    carried = ImageFont.load_default(32)
    if not isinstance(carried, ImageFont.FreeTypeFont) or not getattr(carried, "font_bytes", b""):
        pytest.skip("this Pillow carries no scalable font")
    (folder / "one.ttf").write_bytes(carried.font_bytes)
    return folder / "one.ttf"


def test_benchmarks_page_tells_what_the_code_says() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for benchmark in BENCHMARKS.values():
        (row,) = re.findall(rf"^\| `{benchmark.name}` .*$", page, re.MULTILINE)
        cells = [cell.strip() for cell in row.split("|")[3:7]]
        told = [benchmark.classes, benchmark.image_size, f"`{benchmark.backbone}`", benchmark.licence]
        assert cells == list(map(str, told))
        assert all(f"`{domain}`" in row for domain in benchmark.domains)
    for variant, meaning in BENCHMARKS["digits-five"].variants.items():
        assert f"| `{variant}` | {meaning} |" in page
    for forms in digits_five._FORMS.values():
        names = {name for form in forms for names in form.files for name in names}
        plain = {name.removesuffix(".gz").replace(".idx", "-idx").partition("/")[0] for name in names}
        assert all(name in page for name in plain if not name.endswith((".tar", ".tgz"))), plain
        assert all(f"`{folder}/`" in page for form in forms for folder in form.folders if folder)
    wrappers = (*office31.WRAPPERS, *pacs.WRAPPERS, *pacs.LIST_FOLDERS, *domainnet.WRAPPERS, *domainnet.LIST_FOLDERS)
    assert all(f"`{folder}/`" in page for folder in wrappers)
