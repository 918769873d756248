"""Names: what may become a path stays inside its folder, and what is shown cannot control a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgnn.names import LONGEST, as_file_name, check_file_name, printable, why_no_file_name

BAD = (
    "", ".", "..", "../up", "/abs", "a/b", "a\\b", "C:x", "a\0b", "a\nb", "\x1b[2J", "‮txt", "-rf", ".hidden", " a",
    "a ", "a.", "CON", "nul.txt", "com1", "a" * (LONGEST + 1), "é" * LONGEST + "x", "a|b", "a*", 'a"b', "\udc80",
)  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_no_single_path_component_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Expected a name that can be a file name") as caught:
        check_file_name(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["tiny", "paper-map-1", "my run 2", "Häuser", "scan.v2", "地面", "a" * LONGEST])
def test_an_ordinary_name_is_kept(name: str) -> None:
    assert check_file_name(name) == name
    assert as_file_name(name, "other") == name[: LONGEST // 2]


@given(st.text(max_size=200))
def test_a_name_that_passes_names_a_file_of_its_folder(name: str) -> None:
    if why_no_file_name(name) is None:
        folder = Path("/folder")
        assert (folder / name).parent == folder
        assert (folder / name).name == name


@given(st.text(max_size=200))
def test_any_text_becomes_a_name(text: str) -> None:
    assert why_no_file_name(as_file_name(text, "otherwise")) is None


@given(st.text(max_size=50))
def test_what_is_shown_is_one_line_without_control_characters(text: str) -> None:
    assert printable(text).isprintable()
    assert not text.isprintable() or printable(text) == text


def test_an_escape_sequence_is_shown_not_sent() -> None:
    assert printable("a\x1b[31mred\x9b0m\r\n\u202e") == r"a\x1b[31mred\x9b0m\r\n\u202e"
    assert printable(Path("x\x07")) == r"x\x07"
