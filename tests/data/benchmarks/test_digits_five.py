import struct
from collections import Counter

import numpy as np
import pytest
from tests.data.benchmarks.trees import folder_of, picture, real_data, zip_of
from tests.data.readers.test_idx import write_idx
from tests.data.readers.test_usps import line, write_h5, write_libsvm

from graphmsda.data.benchmarks.digits_five import DIGITS_FIVE, MARKER
from graphmsda.errors import UserError


def numbers(listing):
    """Read the number that `mnist` wrote into the four pixels of each image."""
    pixels = listing.read(range(len(listing)), None).x[:, 0].reshape(len(listing), 4).numpy()
    return [struct.unpack(">I", row.tobytes())[0] for row in pixels]


def mnist(folder, train=40, test=10, suffix=".gz"):
    """Write MNIST's four files with images of 2 x 2 pixels that spell their own row; test images count from 100,000."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, start, count in (("train", 0, train), ("t10k", 100_000, test)):
        pixels = np.frombuffer(struct.pack(f">{count}I", *range(start, start + count)), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", pixels.reshape(count, 2, 2))
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", np.arange(count) % 10)


def open_part(place, domain, part, variant="paper", labelled=True):
    return DIGITS_FIVE.open(place, domain, part, labelled=labelled, variant=variant)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """MNIST in its true numbers."""
    place = tmp_path_factory.mktemp("large")
    mnist(place, 60_000, 10_000, "")
    return place


def test_the_papers_split_is_drawn_from_the_full_sets(large):
    train, validation = (open_part(large, "mt", part) for part in ("train", "validation"))
    test = open_part(large, "mt", "test")
    assert (len(train), len(validation), len(test)) == (25_000, 6_000, 9_000)
    drawn = [numbers(listing) for listing in (train, validation, test)]
    assert len(set(drawn[0])) == 25_000
    assert set(drawn[0]).isdisjoint(drawn[1])
    assert max(drawn[0]) < 60_000
    assert min(drawn[2]) >= 100_000
    assert list(train.labels[:50]) == [str(number % 10) for number in drawn[0][:50]]
    counts = Counter(train.labels)
    assert min(counts.values()) > 2_350  # a fair draw: 2,500 of each digit, give or take
    assert "25,000 of 60,000 images drawn with seed 0" in train.notes[0]


def test_the_draw_is_the_same_on_every_machine_and_knows_no_labels(large):
    labelled = open_part(large, "mt", "train")
    assert numbers(labelled)[:8] == [0, 5, 10, 13, 14, 16, 17, 18]
    unlabelled = open_part(large, "mt", "train", labelled=False)
    assert unlabelled.labels is None
    assert unlabelled.rows == labelled.rows
    assert unlabelled.identity() == labelled.identity()


def test_a_training_and_a_validation_part_share_one_copy_in_memory(large):
    train, validation = (open_part(large, "mt", part) for part in ("train", "validation"))
    assert train.whole is validation.whole


def test_named_variants(large):
    assert len(open_part(large, "mt", "test", "mnist-test-10000")) == 10_000
    assert len(open_part(large, "mt", "train", "mnist-test-10000")) == 25_000
    assert len(open_part(large, "mt", "train", "full")) == 60_000
    assert numbers(open_part(large, "mt", "validation", "full")) == numbers(open_part(large, "mt", "test", "full"))
    assert len(open_part(large, "mt", "train", "usps-4x")) == 25_000


def test_fewer_images_are_taken_as_they_are_and_the_test_part_serves_for_validation(tmp_path):
    mnist(tmp_path)
    assert len(open_part(tmp_path, "mt", "train")) == 40
    validation = open_part(tmp_path, "mt", "validation")
    assert numbers(validation) == numbers(open_part(tmp_path, "mt", "test"))
    assert any("no validation part, so its test part serves" in note for note in validation.notes)
    with pytest.raises(UserError, match="holds 10 test images of MNIST, but variant mnist-test-10000 needs all 10,000"):
        open_part(tmp_path, "mt", "test", "mnist-test-10000")


def test_between_25000_and_31000_images_there_is_no_validation_part(tmp_path):
    mnist(tmp_path, 30_000, 10)
    assert len(open_part(tmp_path, "mt", "train")) == 25_000
    assert len(open_part(tmp_path, "mt", "validation")) == 10


@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_found_compressed_or_not_in_the_usual_folders(tmp_path, folder, suffix):
    mnist(tmp_path / folder, suffix=suffix)
    listing = open_part(tmp_path, "mt", "test")
    assert listing.labels == tuple("0123456789")
    assert numbers(listing)[0] == 100_000
    assert DIGITS_FIVE.describe(tmp_path)["domains"]["mt"]["kind"] == "official files"
    assert set(DIGITS_FIVE.missing(tmp_path)) == {"mm", "up", "sv", "syn"}


def test_labels_of_a_target_are_not_looked_at(tmp_path):
    mnist(tmp_path, suffix="")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"not labels at all")
    assert len(open_part(tmp_path, "mt", "train", labelled=False)) == 40
    with pytest.raises(UserError, match="does not begin like an IDX file of labels"):
        open_part(tmp_path, "mt", "train")


def test_half_of_the_official_files_is_told(tmp_path):
    mnist(tmp_path, suffix="")
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    why = DIGITS_FIVE.missing(tmp_path)["mt"]
    assert why == (f"{tmp_path}/train-images-idx3-ubyte is there, but {tmp_path}/t10k-labels-idx1-ubyte.gz is not")


def test_nothing_there_names_the_files_that_would_do(tmp_path):
    assert DIGITS_FIVE.missing(tmp_path)["mm"] == (
        f"none of mnist_m_train, mnistm_with_label.mat, mnistm.zip, mnistm/train is in {tmp_path}"
    )
    with pytest.raises(UserError, match="graphmsda data prepare digits-five"):
        open_part(tmp_path, "sv", "train")


def test_a_packed_pack_is_noticed(tmp_path):
    zip_of(tmp_path / "Digit-Five.zip", [])
    assert "Digit-Five.zip holds several domains and has to be unpacked" in DIGITS_FIVE.missing(tmp_path)["up"]


@pytest.mark.parametrize("form", ["bz2", "h5"])
def test_the_whole_of_usps_in_its_own_parts_repeated_in_variants(tmp_path, form):
    if form == "bz2":
        write_libsvm(tmp_path / "usps.bz2", [line(digit + 1, {1: 0}) for digit in range(10)])
        write_libsvm(tmp_path / "usps.t.bz2", [line(3, {1: 0})])
    else:
        train = (np.zeros((10, 256)), np.arange(10))
        write_h5(tmp_path / "usps.h5", train=train, test=(np.zeros((1, 256)), [2]))
    assert open_part(tmp_path, "up", "train").labels == tuple("0123456789")
    assert open_part(tmp_path, "up", "test").labels == ("2",)
    assert open_part(tmp_path, "up", "validation").labels == ("2",)
    for variant, times in (("usps-3x", 3), ("usps-4x", 4), ("full", 1)):
        repeated = open_part(tmp_path, "up", "train", variant)
        assert len(repeated) == 10 * times
        assert Counter(repeated.labels) == {str(digit): times for digit in range(10)}
        assert len(open_part(tmp_path, "up", "test", variant)) == 1
    assert any("comes 3 times" in note for note in open_part(tmp_path, "up", "train", "usps-3x").notes)


def digit_names(train=3, test=2):
    return [
        f"{part}/{d}/{n}.png"
        for part, count in (("train", train), ("test", test))
        for d in range(10)
        for n in range(count)
    ]


@pytest.mark.parametrize(("domain", "name"), [("mt", "mnist"), ("mm", "mnistm"), ("up", "usps"), ("sv", "svhn")])
def test_folders_and_zip_files_of_digits(tmp_path, domain, name):
    folder_of(tmp_path / "a" / name, digit_names())
    zip_of(tmp_path / "b" / f"{name}.zip", digit_names())
    for place, kind in ((tmp_path / "a", "folder"), (tmp_path / "b", "archive")):
        train, test = (open_part(place, domain, part) for part in ("train", "test"))
        assert Counter(train.labels) == {str(digit): 3 for digit in range(10)}
        assert Counter(test.labels) == {str(digit): 2 for digit in range(10)}
        assert train.name == domain
        assert len(open_part(place, domain, "train", labelled=False)) == 30
        assert DIGITS_FIVE.describe(place)["domains"][domain]["kind"] == kind
        assert DIGITS_FIVE.describe(place)["domains"][domain]["re-synthesised"] is False


def test_synthetic_digits_in_images_are_re_synthesised_and_marked_ones_too(tmp_path):
    zip_of(tmp_path / "syn.zip", digit_names())
    zip_of(tmp_path / "svhn.zip", digit_names(), **{MARKER: "{}"})
    folder_of(tmp_path / "mnistm", digit_names())
    (tmp_path / "mnistm" / MARKER).write_text("{}")
    domains = DIGITS_FIVE.describe(tmp_path)["domains"]
    assert [domains[name]["re-synthesised"] for name in ("syn", "sv", "mm")] == [True, True, True]
    assert "re-synthesised" in open_part(tmp_path, "syn", "train").notes[-1]


def test_mnist_m_with_its_label_lists(tmp_path):
    for part, count in (("train", 12), ("test", 11)):
        for n in range(count):
            picture(tmp_path / "mnist_m" / f"mnist_m_{part}" / f"{n:08}.png", n)
        lines = [f"{n:08}.png {n % 10}" for n in range(count)]
        (tmp_path / "mnist_m" / f"mnist_m_{part}_labels.txt").write_text("\n".join(lines) + "\n")
    train, test = (open_part(tmp_path, "mm", part) for part in ("train", "test"))
    assert train.labels == (*"0123456789", "0", "1")
    assert len(test) == 11
    assert [int(value) for value in train.read([3, 11], 4).x[:, 0, 0, 0]] == [3, 11]
    (tmp_path / "mnist_m/mnist_m_train_labels.txt").write_text("".join(f"{n:08}.png secret\n" for n in range(12)))
    unlabelled = open_part(tmp_path, "mm", "train", labelled=False)
    assert unlabelled.labels is None
    assert unlabelled.item_names == train.item_names
    (tmp_path / "mnist_m/mnist_m_train/00000003.png").unlink()
    with pytest.raises(UserError, match=r"1 of the 12 images it names are not in .*mnist_m_train .first: 00000003.png"):
        open_part(tmp_path, "mm", "train")


def save_mat(path, **variables):
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, variables)


@pytest.mark.parametrize(
    ("domain", "train", "test"),
    [
        ("sv", "train_32x32.mat", "test_32x32.mat"),
        ("sv", "svhn/train_32x32.mat", "svhn/test_32x32.mat"),
        ("sv", "svhn_train_32x32.mat", "svhn_test_32x32.mat"),
        ("syn", "synth_train_32x32.mat", "synth_test_32x32.mat"),
    ],
)
def test_mat_files_in_pairs_as_svhn_and_synthetic_digits_have_them(tmp_path, domain, train, test):
    for name, count in ((train, 20), (test, 10)):
        x = np.zeros((32, 32, 3, count), dtype=np.uint8) + np.arange(count, dtype=np.uint8)
        save_mat(tmp_path / name, X=x, y=np.arange(count)[:, None] % 10 + 1)
    listing = open_part(tmp_path, domain, "train")
    assert listing.labels == tuple("1234567890") * 2  # 10 stands for 0
    assert [int(value) for value in listing.read([0, 19], None).x[:, 0, 0, 0]] == [0, 19]
    assert len(open_part(tmp_path, domain, "test")) == 10
    assert len(open_part(tmp_path, domain, "train", labelled=False)) == 20
    assert DIGITS_FIVE.describe(tmp_path)["domains"][domain]["re-synthesised"] is False


def test_the_m3sda_pack(tmp_path):
    place = tmp_path / "Digit-Five"
    one_hot = np.eye(10)[np.arange(20) % 10]
    save_mat(
        place / "mnist_data.mat",
        train_28=np.full((20, 28, 28, 1), 200.0), train_32=np.full((20, 32, 32), 200.0), label_train=one_hot,
        test_28=np.full((10, 28, 28, 1), 200.0), test_32=np.full((10, 32, 32), 200.0), label_test=one_hot[:10],
    )  # fmt: skip
    colour = np.full((20, 28, 28, 3), 90, dtype=np.uint8)
    save_mat(
        place / "mnistm_with_label.mat", train=colour, test=colour[:10], label_train=one_hot, label_test=one_hot[:10]
    )
    cells = np.empty((2, 2), dtype=object)
    for row, count in enumerate((20, 10)):
        cells[row, 0], cells[row, 1] = np.full((count, 1, 28, 28), 0.5), np.arange(count)[:, None] % 10
    save_mat(place / "usps_28x28.mat", dataset=cells)
    save_mat(
        place / "syn_number.mat",
        train_data=np.full((20, 32, 32, 3), 7, dtype=np.uint8), train_label=np.arange(20)[:, None] % 10,
        test_data=np.full((10, 32, 32, 3), 7, dtype=np.uint8), test_label=np.arange(10)[:, None] % 10,
    )  # fmt: skip
    for domain, level in (("mt", 200), ("mm", 90), ("up", 128), ("syn", 7)):
        train, test = (open_part(tmp_path, domain, part) for part in ("train", "test"))
        assert train.labels == tuple("0123456789") * 2
        assert test.labels == tuple("0123456789")
        assert int(train.read([0], 32).x.max()) == level
        assert open_part(tmp_path, domain, "train", labelled=False).labels is None
        assert DIGITS_FIVE.describe(tmp_path)["domains"][domain]["kind"] == "M3SDA pack"
    assert DIGITS_FIVE.describe(tmp_path)["domains"]["syn"]["re-synthesised"] is False


def test_official_files_come_before_the_pack_archives_and_folders(tmp_path):
    for make, kind in (
        (lambda: folder_of(tmp_path / "mnist", digit_names()), "folder"),
        (lambda: zip_of(tmp_path / "mnist.zip", digit_names()), "archive"),
        (lambda: (tmp_path / "mnist_data.mat").touch(), "M3SDA pack"),
        (lambda: mnist(tmp_path), "official files"),
    ):
        make()
        assert DIGITS_FIVE.describe(tmp_path)["domains"]["mt"]["kind"] == kind


def test_the_real_zip_files_hold_what_their_description_says():
    place = real_data("digits-five") / "digits-five"
    assert DIGITS_FIVE.missing(place) == {}
    sizes = {}
    for domain in DIGITS_FIVE.domains:
        parts = [open_part(place, domain, part) for part in ("train", "validation", "test")]
        sizes[domain] = tuple(map(len, parts))
        assert set(parts[0].labels) == set(parts[2].labels) == set("0123456789")
    assert sizes.pop("up") == (7_291, 2_007, 2_007)
    assert set(sizes.values()) == {(25_000, 9_000, 9_000)}
    usps = open_part(place, "up", "test")
    assert [Counter(usps.labels)[str(d)] for d in range(10)] == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    assert DIGITS_FIVE.describe(place)["domains"]["syn"]["re-synthesised"] is True
    for domain in DIGITS_FIVE.domains:
        decoded = open_part(place, domain, "train", labelled=False).read([0, 100], 32)
        assert (decoded.x.shape, decoded.failures) == ((2, 3, 32, 32), [])
