import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from graphmsda.data.checks import duplicates
from graphmsda.data.checks.duplicates import coarse, correlation, detail, group, is_copy, near_duplicates
from graphmsda.data.checks.hash_search import HashSearch


def photograph(seed, side=200):
    """A picture with structure at all scales, more of it in brightness than in colour, as photographs have."""
    rng = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells, weight, colour in ((3, 130, 0.4), (7, 70, 0.2), (20, 30, 0.0), (60, 15, 0.0)):
        values = (1 - colour) * rng.random((cells, cells, 1)) + colour * rng.random((cells, cells, 3))
        noise = Image.fromarray((255 * values).astype(np.uint8))
        total += weight / 255 * np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64)
    return Image.fromarray(total.clip(0, 255).astype(np.uint8))


def jpeg(picture, quality=50):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def cropped(picture):
    edge = round(0.01 * picture.width)
    return picture.crop((edge, edge, picture.width - edge, picture.height - edge))


COPIES = {
    "jpeg": jpeg,
    "half": lambda picture: picture.resize((picture.width // 2, picture.height // 2)),
    "crop": cropped,
    "brighter": lambda picture: ImageEnhance.Brightness(picture).enhance(1.05),
    "darker": lambda picture: ImageEnhance.Brightness(picture).enhance(0.95),
    "stretched": lambda picture: picture.resize((picture.width, picture.height * 3 // 4)),
}


def search(pictures, **options):
    hashes, thumbnails = zip(*map(coarse, pictures), strict=True)
    details = [None if picture is None else detail(picture) for picture in pictures]
    return near_duplicates(
        np.array(hashes, dtype=np.uint64),
        np.stack(thumbnails),
        lambda some: [details[place] for place in some],
        **options,
    )


@pytest.mark.parametrize("change", COPIES)
def test_a_changed_copy_is_found_and_different_photographs_are_not(change):
    originals = [photograph(seed) for seed in range(40)]
    copies = [COPIES[change](picture) for picture in originals]
    found = search(originals + copies)
    assert {tuple(pair) for pair in found.pairs.tolist()} == {(number, number + 40) for number in range(40)}
    assert found.complete


@pytest.mark.parametrize("change", ["jpeg", "brighter", "darker"])
def test_small_pictures_too(change):
    originals = [photograph(seed, side=32) for seed in range(40)]
    found = search(originals + [COPIES[change](picture) for picture in originals])
    pairs = {tuple(pair) for pair in found.pairs.tolist()}
    expected = {(number, number + 40) for number in range(40)}
    assert pairs <= expected
    assert len(pairs) >= 36


def strokes(count, side=28):
    """Upright strokes much like one another, as written ones are."""
    rng = np.random.default_rng(0)
    place = np.arange(side)
    for _ in range(count):
        bend = np.interp(place, np.linspace(0, side, 6), rng.normal(0, 0.8, 6))
        middle = side / 2 + bend + rng.normal(0, 0.06) * (place - side / 2)
        thick = 1.6 + rng.normal(0, 0.25)
        ink = np.clip(thick - np.abs(place[None, :] - middle[:, None]), 0, 1) * ((place > 3) & (place < 25))[:, None]
        yield Image.fromarray((255 * ink).astype(np.uint8)).convert("RGB")


def test_strokes_that_look_alike_are_not_copies_though_their_hashes_are_close():
    pictures = list(strokes(300))
    hashes = np.array([coarse(picture)[0] for picture in pictures], dtype=np.uint64)
    close = sum(map(len, HashSearch(hashes, 8)))
    assert close > 1000
    assert len(search(pictures).pairs) < 0.02 * close
    with_copies = search([*pictures, *map(jpeg, pictures[:20])])
    copies = {tuple(pair) for pair in with_copies.pairs.tolist() if pair[1] >= 300}
    assert len(copies & {(number, number + 300) for number in range(20)}) >= 15


def test_the_same_shape_in_other_colours_is_another_small_picture():
    shape = next(strokes(1))
    ink = np.asarray(shape)
    red = Image.fromarray((ink * np.array([0.9, 0.2, 0.2]) + 20).astype(np.uint8))
    assert correlation(detail(shape), detail(shape)) == pytest.approx(1)
    assert not is_copy(detail(shape), detail(red), crowded=False)
    assert is_copy(detail(shape), detail(ImageEnhance.Brightness(shape).enhance(0.95)), crowded=True)


def test_only_so_many_bits_as_asked_for():
    picture = photograph(1)
    changed = COPIES["jpeg"](picture).resize((60, 60))
    hashes = [coarse(picture)[0], coarse(changed)[0]]
    apart = (hashes[0] ^ hashes[1]).bit_count()
    assert len(search([picture, changed], bits=apart).pairs) == 1
    if apart:
        assert not len(search([picture, changed], bits=apart - 1).pairs)


def test_a_picture_that_can_no_longer_be_read_is_no_copy():
    hashes, thumbnails = zip(*[coarse(photograph(1))] * 2, strict=True)
    found = near_duplicates(np.array(hashes, dtype=np.uint64), np.stack(thumbnails), lambda some: [None] * len(some))
    assert not len(found.pairs)


def test_too_many_candidates_keep_the_best_and_say_so(monkeypatch):
    monkeypatch.setattr(duplicates, "MOST_CANDIDATES", 10)
    picture = photograph(1)
    found = search([picture] * 12)
    assert not found.complete
    assert 0 < len(found.pairs) <= 10


def test_brightness_and_contrast_leave_the_hash_alone():
    light = np.asarray(photograph(3).convert("L").resize((32, 32)), dtype=np.float32)
    value = duplicates.perceptual_hash(light)
    assert duplicates.perceptual_hash(0.5 * light + 40) == value
    assert value < 1 << 64
    assert value.bit_count() == 31  # half of what counts is above the median, so hashes are evenly spread


def test_groups_tie_chains_together():
    assert group(7, np.array([[5, 1], [1, 3], [0, 6]])) == [[0, 6], [1, 3, 5]]
    assert group(3, np.empty((0, 2), dtype=np.int64)) == []


def test_handwritten_digits_are_not_called_copies_by_the_thousand():
    root = os.environ.get("GRAPHMSDA_DATA")
    place = Path(root or "") / "digits-five" / "mnist.zip"
    if not root or not place.exists():
        pytest.skip("GRAPHMSDA_DATA names no folder with digits-five/mnist.zip")
    from graphmsda.data.formats import open_listing

    listing = open_listing(place, labelled=True, part="test")
    ones = [row for row, label in enumerate(listing.labels or ()) if label in "17"]
    pictures = [listing.picture(row) for row in ones]
    found = search(pictures)
    assert found.complete
    assert len(found.pairs) < len(pictures) / 100
