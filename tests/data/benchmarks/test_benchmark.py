import dataclasses
import gc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from graphmsda.data.benchmarks.benchmark import (
    Benchmark,
    Found,
    data_root,
    find_images,
    item_key,
    open_once,
    resolve_domain,
)
from graphmsda.data.formats import open_listing
from graphmsda.errors import UserError


def find(place, domain):
    path = place / f"{domain}.npz"
    return Found("arrays", (path,)) if path.exists() else f"no {domain}.npz in {place}"


def read(found, domain, part, *, labelled, variant):
    return open_listing(found.files[0], labelled=labelled)


TOY = Benchmark(
    name="toy",
    title="Toy",
    domains={"re": "Red ones", "bl": "Blue_ones"},
    classes=2,
    images=4,
    size=100,
    licence="none",
    image_size=8,
    find=find,
    read=read,
    variants={"paper": "as printed", "full": "everything"},
    aliases={"r": "re"},
)


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=np.zeros((2, 4, 4), dtype=np.uint8), y=["a", "b"])
    return path


def test_an_opened_part_is_named_after_its_domain_and_notes_what_served(tmp_path):
    save(tmp_path / "re.npz")
    listing = TOY.open(tmp_path, "re", "train", labelled=True)
    assert listing.name == "re"
    assert listing.labels == ("a", "b")
    assert listing.notes == ("toy:re: train part, 2 samples of variant paper, from re.npz (arrays)",)
    assert TOY.open(tmp_path, "re", "test", labelled=False, variant="full").labels is None


def test_a_remade_domain_is_marked_in_notes_and_record(tmp_path):
    save(tmp_path / "re.npz")
    remade = dataclasses.replace(TOY, remade=lambda domain, found: domain == "re")
    assert "re-synthesised, so not comparable" in remade.open(tmp_path, "re", "train", labelled=True).notes[-1]
    assert remade.describe(tmp_path)["domains"]["re"]["re-synthesised"] is True


def test_what_is_missing_is_said_and_what_to_do(tmp_path):
    save(tmp_path / "re.npz")
    assert TOY.missing(tmp_path) == {"bl": f"no bl.npz in {tmp_path}"}
    with pytest.raises(UserError) as caught:
        TOY.open(tmp_path, "bl", "train", labelled=True)
    assert str(caught.value) == (
        f"toy:bl (Blue_ones) cannot be read: no bl.npz in {tmp_path}; "
        "run graphmsda data prepare toy, or say with --data-root where the data lies"
    )


def test_the_record_names_variant_seed_and_files_below_the_place(tmp_path):
    save(tmp_path / "re.npz")
    assert TOY.describe(tmp_path, "full") == {
        "benchmark": "toy",
        "variant": "full",
        "about": "everything",
        "seed": 0,
        "domains": {"re": {"kind": "arrays", "files": ["re.npz"], "re-synthesised": False}},
    }


def test_variants_are_checked(tmp_path):
    assert TOY.choose_variant(None) == "paper"
    with pytest.raises(
        UserError, match=r"toy has no variant 'papper'; did you mean paper[?] choose one of paper, full"
    ):
        TOY.choose_variant("papper")
    with pytest.raises(ValueError, match="no part 'extra'"):
        TOY.open(tmp_path, "re", "extra", labelled=True)


@pytest.mark.parametrize(
    ("text", "domain"), [("re", "re"), ("RE", "re"), ("R", "re"), ("red ones", "re"), ("blue-ones", "bl")]
)
def test_domains_are_known_by_short_and_long_names_in_any_case(text, domain):
    assert resolve_domain(TOY, text) == domain


def test_an_unknown_domain_gets_a_suggestion():
    with pytest.raises(UserError, match=r"toy has no domain 'blues'; did you mean bl[?] choose one of re, bl"):
        resolve_domain(TOY, "blues")
    with pytest.raises(UserError, match=r"toy has no domain 'xyz'; choose one of re, bl"):
        resolve_domain(TOY, "xyz")


def test_the_data_root_is_as_given_else_from_the_environment_else_the_users_own(monkeypatch):
    monkeypatch.setenv("GRAPHMSDA_DATA", "/somewhere")
    assert data_root("/given") == Path("/given")
    assert data_root() == Path("/somewhere")
    monkeypatch.delenv("GRAPHMSDA_DATA")
    assert data_root() == Path.home() / ".local/share/graphmsda"


def test_archives_come_before_folders_and_the_place_before_its_wrappers(tmp_path):
    assert find_images(tmp_path, "photo", ("kfold",)) is None
    for path in ("kfold/photo", "photo"):
        (tmp_path / path).mkdir(parents=True)
        assert find_images(tmp_path, "photo", ("kfold",)) == tmp_path / path
    for name in ("photo.tar.gz", "photo.zip"):
        (tmp_path / name).touch()
        assert find_images(tmp_path, "photo", ("kfold",)) == tmp_path / name


def test_a_file_in_use_is_read_once_and_again_when_it_changed(tmp_path):
    path = save(tmp_path / "re.npz")
    first = open_once(path, labelled=True)
    assert open_once(path, labelled=True) is first
    assert open_once(path, labelled=False) is not first
    np.savez(path, x=np.zeros((3, 4, 4), dtype=np.uint8), y=["a", "b", "a"])
    assert len(open_once(path, labelled=True)) == 3
    calls = []
    del first
    gc.collect()
    open_once(path, labelled=True, opener=lambda: calls.append(1) or open_listing(path, labelled=True))
    assert calls == [1]


def test_a_folder_is_listed_every_time(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "1.png")
    first = open_once(tmp_path, labelled=False)
    Image.new("L", (4, 4)).save(tmp_path / "2.png")
    assert (len(first), len(open_once(tmp_path, labelled=False))) == (1, 2)


def test_an_image_is_known_by_class_and_name_whatever_holds_it():
    names = ["a/b/photo/dog/056_1.v2.jpg", "photo.zip/dog/056_1.v2.webp", "dog\\056_1.v2.png", "dog/056_1.v2.JPEG"]
    assert {item_key(name) for name in names} == {"dog/056_1.v2"}
    assert item_key("cafe\u0301/1.png") == item_key("caf\u00e9/1.png")
