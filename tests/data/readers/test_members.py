"""Which members of an archive are listed, under which name, and what is done about garbage meanwhile."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from graphmsda.data.readers.members import member_path
from graphmsda.errors import UserError
from graphmsda.garbage import garbage_left


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("1.png", "1.png"),
        ("train/3/1.PNG", "train/3/1.PNG"),
        ("a b/ü.x/1.tar.webp", "a b/ü.x/1.tar.webp"),
        ("a\n/1.png", "a\n/1.png"),
        ("./a//1.png", "a/1.png"),
        ("a\\1.png", "a/1.png"),
        ("a/b:c.png", "a/b:c.png"),
        ("a..b/1..png", "a..b/1..png"),
        ("my__MACOSX/1.png", "my__MACOSX/1.png"),
        ("__MACOSX/1.png", None),
        ("a/__MACOSX/1.png", None),
        (".a/1.png", None),
        ("a/.1.png", None),
        ("a/.png", None),
        ("a.png/", None),
        ("a.png/b", None),
        ("a/png", None),
        ("a/1.txt", None),
        ("a/1.png\n", None),
        ("", None),
    ],
)
def test_what_is_listed(name: str, listed: str | None) -> None:
    assert member_path(Path("x.zip"), name) == listed


@pytest.mark.parametrize(
    "name", ["/1.png", "../1.png", "a/../1.png", "a\\..\\1.png", "c:1.png", "a/1.png\0", "\\1.png"]
)
def test_what_leads_outside_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="leads outside the archive"):
        member_path(Path("x.zip"), name)


def test_garbage_is_collected_again_afterwards() -> None:
    def work() -> None:
        with garbage_left():
            with garbage_left():
                pass
            assert not gc.isenabled()
            raise ValueError("mine")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="mine"):
        work()
    assert gc.isenabled()
