import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmsda.data.classes import evaluation_indices, match_classes
from graphmsda.data.readers.arrays import listing_of_arrays
from graphmsda.errors import UserError


def source(name, labels):
    return listing_of_arrays(np.zeros((len(labels), 1)), [str(label) for label in labels], name=name)


def match(*labels, policy="error"):
    return match_classes([source("abcdefgh"[n], here) for n, here in enumerate(labels)], policy)


def error(*labels, policy="error"):
    with pytest.raises(UserError) as caught:
        match(*labels, policy=policy)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(matched, number):
    return [matched.classes[index] for index in matched.indices[number]]


def test_by_name_not_by_order():
    matched = match(["dog", "cat", "dog"], ["cat", "dog"])
    assert matched.classes == ("cat", "dog")
    assert matched.indices == ((1, 0, 1), (0, 1))
    assert matched.rows == ((0, 1, 2), (0, 1))
    assert matched.notes == ()


def test_order_of_classes():
    assert match([10, 9, -1, 2]).classes == ("-1", "2", "9", "10")
    assert match(["b", "10", "9", "a"]).classes == ("9", "10", "a", "b")


def test_classes_that_some_lack_are_an_error():
    found = error(["cat", "dog", "eel"], ["cat", "dog", "fox"])
    assert "the classes of the sources differ: a lacks 'fox'; b lacks 'eel'" in found
    assert "--classes common" in found
    assert "--classes union" in found
    assert "b lacks '2', '3', '4', '5', '6' and 13 more" in error(range(20), range(2))
    assert "a: only one class (cat)" in error(["cat"], ["cat", "dog"])
    assert "a: only one class (cat)" in error(["cat"])
    assert "a: only one class" in error(["3", "03"])


def test_a_label_far_out_is_reported_as_what_others_lack():
    assert "a lacks '255'" in error(range(10), [*range(10), 255])
    assert match([*range(10), 255]).classes[-1] == "255"


def test_common():
    matched = match(["cat", "eel", "dog", "eel"], ["dog", "cat", "fox"], ["dog", "cat"], policy="common")
    assert matched.classes == ("cat", "dog")
    assert matched.rows == ((0, 2), (0, 1), (0, 1))
    assert matched.indices == ((0, 1), (1, 0), (1, 0))
    assert matched.notes[0] == "a: 2 of 4 samples are left out, whose classes other sources lack: 'eel'"
    assert len(matched.notes) == 2
    assert "only one class (cat) is in every source" in error(["cat", "dog"], ["cat", "eel"], policy="common")
    assert "no class is in every source" in error(["cat", "dog"], ["eel", "fox"], policy="common")


def test_union():
    matched = match(["cat", "eel"], ["dog", "cat"], ["dog"], policy="union")
    assert matched.classes == ("cat", "dog", "eel")
    assert matched.indices == ((0, 2), (1, 0), (1,))
    assert "a lacks 'dog'; b lacks 'eel'; c lacks 'cat', 'eel'" in matched.notes[0]
    assert "only one class" in error(["cat"], ["cat"], policy="union")
    assert "--classes some: unknown; choose one of error, common, union" in error(["a", "b"], policy="some")


def test_counts_from_0_and_from_1():
    matched = match(range(10), range(1, 11), [f"{n:02}" for n in range(10)])
    assert matched.classes == tuple("0123456789")
    assert matched.indices == (tuple(range(10)),) * 3
    assert matched.notes == ("b: its classes 1 to 10 were read as 0 to 9, as elsewhere; if its 10 means 0, call it 0",)
    assert match(range(1, 6), range(1, 6)).classes == tuple("12345")
    assert match(range(1, 6), range(1, 6)).notes == ()
    assert "b lacks '0'" in error(range(10), range(1, 10))  # nine classes are not ten counted from 1


def test_spellings_of_numbers():
    matched = match(["3", "04"], ["3.0", "4"], ["+3", "4."])
    assert matched.classes == ("3", "4")
    assert matched.indices == ((0, 1),) * 3
    assert match(["001", "002"], ["002", "001"]).classes == ("001", "002")
    twice = match(["3", "03", "4"])
    assert twice.indices == ((0, 0, 1),)
    assert "spellings of one number" in twice.notes[0]


def test_spellings_of_names():
    matched = match(["back_pack", "bike"], ["Back Pack", "Bike"], ["backpack", "bike "])
    assert matched.classes == ("back_pack", "bike")
    assert matched.indices == ((0, 1),) * 3
    assert "'back_pack' = 'Back Pack' = 'backpack', 'bike' = 'Bike'" in matched.notes[0]
    assert match(["caf\u00e9", "tea"], ["cafe\u0301", "tea"]).notes == ()
    assert "b lacks 'level 1-1'" in error(["level 1-1", "x"], ["level 11", "x"])


def test_names_that_one_source_tells_apart_stay_apart():
    matched = match(["Polish", "polish", "x"], ["polish", "Polish", "X"])
    assert matched.classes == ("Polish", "polish", "x")
    assert matched.indices == ((0, 1, 2), (1, 0, 2))


def test_numbers_and_names_are_not_mixed():
    for policy in ("error", "common", "union"):
        found = error([0, 1, 2, 3], ["cat", "dog"], policy=policy)
        assert "a calls its classes by numbers ('0', '1', '2' and 1 more) and b by names ('cat', 'dog')" in found


@given(
    st.lists(st.integers(0, 10**6), min_size=2, max_size=8, unique=True),
    st.lists(st.sampled_from(["{}", "0{}", "{}.0", " {}", "+{}", "{}."]), min_size=8, max_size=8),
    st.randoms(),
)
def test_any_spelling_and_order_of_numbers(numbers, spellings, random):
    other = [spelling.format(number) for spelling, number in zip(spellings, numbers, strict=False)]
    shuffled = random.sample(other, len(other))
    matched = match(numbers, shuffled)
    assert [int(name) for name in matched.classes] == sorted(numbers)
    assert [int(name) for name in names(matched, 0)] == numbers
    assert [int(name) for name in names(matched, 1)] == [int(float(label)) for label in shuffled]


@given(st.integers(2, 40), st.lists(st.booleans(), min_size=1, max_size=5))
def test_shifts_only_where_another_source_counts_from_0(size, from_one):
    matched = match(*(range(one, size + one) for one in from_one))
    start = int(all(from_one))
    assert matched.classes == tuple(str(number) for number in range(start, size + start))
    assert matched.indices == (tuple(range(size)),) * len(from_one)
    assert len(matched.notes) == (0 if start else sum(from_one))


@given(st.lists(st.sets(st.integers(0, 12), min_size=2), min_size=1, max_size=4))
def test_what_each_policy_keeps(sets):
    labels = [[f"class {number}" for number in here] for here in sets]
    for policy, kept in (("union", set.union(*sets)), ("common", set.intersection(*sets))):
        if len(kept) < 2:
            assert "share at least two classes" in error(*labels, policy=policy)
            continue
        matched = match(*labels, policy=policy)
        assert set(matched.classes) == {f"class {number}" for number in kept}
        for number, here in enumerate(labels):
            assert names(matched, number) == [here[row] for row in matched.rows[number]]
            assert {here[row] for row in matched.rows[number]} == set(here) & set(matched.classes)


WORDS = st.lists(st.text("aé字 _-12", min_size=1, max_size=6), min_size=2, max_size=6, unique=True)


@given(WORDS, st.randoms())
def test_every_row_gets_its_own_class(words, random):
    words = [*words, "first", "second"]
    decomposed = [unicodedata.normalize("NFD", word) for word in random.sample(words, len(words))]
    matched = match(words, decomposed)
    assert len(set(matched.classes)) == len(matched.classes)
    place = dict(zip(words, matched.indices[0], strict=True))
    assert [place[unicodedata.normalize("NFC", word)] for word in decomposed] == list(matched.indices[1])


def test_evaluation():
    notes = []
    assert evaluation_indices(["dog", "cat", "dog"], ("cat", "dog"), "t", notes) == [1, 0, 1]
    assert evaluation_indices(["9", "09"], tuple("0123456789"), Path("t")) == [9, 9]
    assert evaluation_indices(list("123"), tuple("0123"), "t", notes) == [1, 2, 3]
    assert evaluation_indices([], ("cat", "dog"), "t", notes) == []
    assert notes == []
    assert evaluation_indices(["Back Pack"], ("back_pack", "bike"), "t", notes) == [0]
    assert len(notes) == 1
    assert evaluation_indices([str(n) for n in range(1, 11)], tuple("0123456789"), "t", notes) == list(range(10))
    assert notes[1].startswith("t: its classes 1 to 10 were read as 0 to 9")
    assert evaluation_indices(list("0123"), tuple("1234"), "t") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("labels", "classes"), [(["fox", "cat"], ["cat", "dog"]), (["fox", "1"], ["0", "1"]), (["3"], ["cat", "dog"])]
)
def test_foreign_classes_in_evaluation(labels, classes):
    with pytest.raises(UserError) as caught:
        evaluation_indices(labels, classes, "t")
    assert str(caught.value) == (
        f"t: classes {labels[0]} are unknown to this model; it knows {', '.join(classes)}; rename or remove these"
    )
