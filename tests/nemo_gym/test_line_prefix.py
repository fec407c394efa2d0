from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.line_prefix import LinePrefixer


def test_every_line_gets_the_name_and_a_piece_waits_for_its_end() -> None:
    prefixer = LinePrefixer("a")
    assert prefixer.feed(b"one\ntw") == b"(a) one\n"
    assert prefixer.feed(b"o\n\n") == b"(a) two\n(a) \n"
    assert prefixer.flush() == b""


def test_the_rest_without_an_end_becomes_a_line() -> None:
    prefixer = LinePrefixer("a")
    assert prefixer.feed(b"last") == b""
    assert prefixer.flush() == b"(a) last\n"
    assert prefixer.flush() == b""


def test_a_line_that_names_the_server_already_is_left_alone() -> None:
    line = b"2026-01-01 INFO (a) uvicorn: up\n"
    assert LinePrefixer("a").feed(line) == line


def test_a_line_without_end_is_not_held_for_ever() -> None:
    assert LinePrefixer("a").feed(b"x" * 100_000) == b"(a) " + b"x" * 100_000 + b"\n"


@given(st.lists(st.binary(max_size=20)))
def test_nothing_is_lost_however_the_stream_is_cut(pieces: list[bytes]) -> None:
    whole, cut = LinePrefixer("a"), LinePrefixer("a")
    text = b"".join(pieces)
    expected = whole.feed(text) + whole.flush()
    assert b"".join(map(cut.feed, pieces)) + cut.flush() == expected
