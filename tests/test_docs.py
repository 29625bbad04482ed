"""What the pages in docs/ tell a user to type, run as it stands there on small generated data."""

from __future__ import annotations

import csv
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.test_cli import make_domain
from tests.test_readme import blocks

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


def arrays_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
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
