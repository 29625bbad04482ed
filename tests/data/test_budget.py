import os
import threading
from contextlib import contextmanager

from graphmsda.data.budget import Budget


@contextmanager
def spend(budget, amount):
    with budget.spending() as spend:
        spend(amount)
        yield


def test_what_does_not_fit_waits():
    budget = Budget(10)
    entered, release = threading.Event(), threading.Event()

    def large():
        with spend(budget, 8):
            entered.set()
            release.wait(10)

    thread = threading.Thread(target=large)
    thread.start()
    assert entered.wait(10)
    with spend(budget, 2):  # fits beside it
        pass
    second = threading.Thread(target=lambda: spend(budget, 1000).__enter__())
    second.start()
    second.join(0.05)
    assert second.is_alive()
    release.set()
    second.join(10)
    thread.join(10)
    assert not second.is_alive()


def test_an_error_gives_the_amount_back():
    budget = Budget(1)
    for _ in range(3):
        try:
            with spend(budget, 1):
                raise ValueError
        except ValueError:
            pass
    assert budget._free == 1


def test_a_fork_starts_with_all_of_it():
    budget = Budget(1)
    with spend(budget, 1), budget._changed:  # as if another thread held it at that moment
        child = os.fork()
        if child == 0:
            with spend(budget, 1):
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
