from collections import Counter

import pytest
from tests.data.benchmarks.trees import folder_of, real_data, zip_of

from graphmsda.data.benchmarks.benchmark import item_key, resolve_domain
from graphmsda.data.benchmarks.domainnet import DOMAINNET
from graphmsda.errors import UserError

CLASSES = [f"class_{number:03}" for number in range(345)]
PER_CLASS = 4


def names(domain, level=""):
    return [f"{level}{label}/{domain}_{n:03}.jpg" for label in CLASSES for n in range(PER_CLASS)]


def write_lists(folder, domain):
    """Write the official lists: the last image of each class for test."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, chosen in (("train", range(PER_CLASS - 1)), ("test", [PER_CLASS - 1])):
        lines = [
            f"{domain}/{label}/{domain}_{n:03}.jpg {number}\n" for number, label in enumerate(CLASSES) for n in chosen
        ]
        (folder / f"{domain}_{part}.txt").write_text("".join(lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """All six domains with 345 classes each: three as folders, three as the official archives."""
    root = tmp_path_factory.mktemp("domainnet")
    for number, domain in enumerate(DOMAINNET.domains):
        if number % 2:
            zip_of(root / f"{domain}.zip", names(domain, f"{domain}/"))
        else:
            folder_of(root / domain, names(domain))
        write_lists(root, domain)
    return root


def open_part(place, domain, part, labelled=True):
    return DOMAINNET.open(place, domain, part, labelled=labelled)


def test_six_domains_of_345_classes_from_folders_and_archives(place):
    assert DOMAINNET.missing(place) == {}
    for domain in DOMAINNET.domains:
        train, test = (open_part(place, domain, part) for part in ("train", "test"))
        assert Counter(train.labels) == dict.fromkeys(CLASSES, 3)
        assert Counter(test.labels) == dict.fromkeys(CLASSES, 1)
        assert {item_key(name).rpartition("_")[2] for name in test.item_names} == {"003"}
        validation = open_part(place, domain, "validation")
        assert validation.item_names == test.item_names
        target = open_part(place, domain, "train", labelled=False)
        assert target.labels is None
        assert target.item_names == train.item_names
        assert len(open_part(place, domain, "all", labelled=False)) == PER_CLASS * 345
        assert train.read([0, 500], 8).kept == [0, 1]


def small(root, **files):
    zip_of(root / "clipart.zip", names("clipart", "clipart/"))
    write_lists(root, "clipart")
    for name, text in files.items():
        (root / f"{name}.txt").write_text(text)


def test_duplicates_are_left_out_and_counted(tmp_path):
    duplicates = "clipart/class_000/clipart_000.jpg 0\nclipart/class_001/clipart_003.jpg\nclipart/class_9/gone.jpg\n"
    small(tmp_path, clipart_duplicates=duplicates)
    train, test = (open_part(tmp_path, "clipart", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (3 * 345 - 1, 345 - 1)
    assert any("1 duplicates of the train part left out" in note for note in train.notes)
    assert "class_000/clipart_000" not in {item_key(name) for name in train.item_names}


def test_one_list_of_duplicates_may_serve_all_domains(tmp_path):
    small(tmp_path, duplicates="real/class_000/real_000.jpg\nclipart/class_000/clipart_000.jpg\n")
    assert len(open_part(tmp_path, "clipart", "train")) == 3 * 345 - 1
    assert "duplicates.txt" in DOMAINNET.describe(tmp_path)["domains"]["clipart"]["files"]


def test_duplicates_of_other_domains_and_empty_lists_do_not_matter(tmp_path):
    small(tmp_path, duplicates="real/class_000/clipart_000.jpg\nclass_001/clipart_001.jpg\n", clipart_duplicates="")
    assert len(open_part(tmp_path, "clipart", "train")) == 3 * 345 - 1


def test_lists_are_needed(tmp_path):
    small(tmp_path)
    (tmp_path / "clipart_test.txt").unlink()
    assert DOMAINNET.missing(tmp_path)["clipart"] == (
        f"{tmp_path}/clipart.zip is there, but the list clipart_test.txt is not in {tmp_path}"
    )
    assert DOMAINNET.missing(tmp_path)["real"] == f"neither real.zip nor a folder real is in {tmp_path}"


def test_a_test_image_in_the_training_list_is_refused(tmp_path):
    small(tmp_path)
    with (tmp_path / "clipart_train.txt").open("a") as file:
        file.write("clipart/class_000/clipart_003.jpg 0\n")
    with pytest.raises(UserError, match=r"clipart_train.txt: names images that clipart_test.txt names too"):
        open_part(tmp_path, "clipart", "train")


def test_labels_beyond_345_are_refused(tmp_path):
    small(tmp_path, clipart_train="clipart/class_000/clipart_000.jpg 346\n")
    with pytest.raises(UserError, match="label '346' of class class_000 is not a number from 0 to 345"):
        open_part(tmp_path, "clipart", "train")


@pytest.mark.parametrize(
    ("text", "domain"), [("clp", "clipart"), ("QDR", "quickdraw"), ("Real", "real"), ("skt", "sketch")]
)
def test_domains_have_the_short_names_of_the_papers_tables(text, domain):
    assert resolve_domain(DOMAINNET, text) == domain


def test_the_official_lists_of_a_real_domain_are_read(tmp_path):
    import zipfile

    lists = real_data("lists") / "lists/domainnet-and-office31-lists.zip"
    with zipfile.ZipFile(lists) as archive:
        for part in ("train", "test"):
            (tmp_path / f"clipart_{part}.txt").write_bytes(archive.read(f"full_345_cdtrans/clipart_{part}.txt"))
    wanted = [line.split()[0] for part in ("train", "test") for line in (tmp_path / f"clipart_{part}.txt").open()]
    zip_of(tmp_path / "clipart.zip", wanted)
    train, test = (open_part(tmp_path, "clipart", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (33_525, 14_604)
    assert len(set(train.labels)) == len(set(test.labels)) == 345
