from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from graphmsda.data.benchmarks.drawing import draw, hold_out, shuffled


def test_the_order_is_the_same_on_every_machine():
    assert shuffled(10, 0, "digits-five:mt:train").tolist() == [5, 0, 4, 6, 1, 3, 8, 7, 9, 2]


def test_seed_name_and_count_each_change_the_order():
    orders = {tuple(shuffled(50, seed, name)) for seed in (0, 1) for name in ("a", "b")}
    assert len(orders) == 4


@given(st.integers(0, 300), st.integers(0, 100), st.integers(0, 100))
def test_drawn_sets_are_disjoint_of_the_sizes_asked_for_and_in_ascending_order(extra, first, second):
    count = extra + first + second
    a, b = draw(count, [first, second], 0, "x")
    assert (len(a), len(b)) == (first, second)
    assert a == sorted(a)
    assert b == sorted(b)
    assert len({*a, *b}) == first + second
    assert all(0 <= row < count for row in (*a, *b))
    assert draw(count, [first], 0, "x") == [a]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=200))
def test_a_tenth_of_each_class_is_held_out_and_nothing_is_lost(labels):
    keys = [f"{label}/{row:03}" for row, label in enumerate(labels)]
    train, held = hold_out(labels, keys, 0, "x")
    assert sorted(train + held) == list(range(len(labels)))
    held_of = Counter(labels[row] for row in held)
    for label, count in Counter(labels).items():
        assert held_of[label] == (0 if count == 1 else max(1, int(count / 10 + 0.5)))


@given(st.permutations(list(range(30))))
def test_the_split_does_not_depend_on_the_order_in_which_files_are_listed(order):
    keys = [f"{'ab'[row % 2]}/{row}" for row in range(30)]
    moved = [keys[row] for row in order]
    _, held = hold_out([key[0] for key in keys], keys, 0, "x")
    _, again = hold_out([key[0] for key in moved], moved, 0, "x")
    assert {keys[row] for row in held} == {moved[row] for row in again}
