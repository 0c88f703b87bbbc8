"""The YAML reader: plain data, the place of everything, and clear words for what is no scenario."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmperf.scenario.document import lookup, parse_document, parse_value, read_document
from lmperf.scenario.dump import to_yaml
from lmperf.scenario.faults import ScenarioError

TEXTS = st.text(st.characters(exclude_categories=("C",), exclude_characters="\x85\u2028\u2029"), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_what_is_written_reads_back_the_same(data):
    """Plain data written as YAML and read again is equal, types included: texts that look like numbers stay texts."""
    read = parse_document(to_yaml(data))
    assert read.data == data
    assert repr(read.data) == repr(data)
    assert not read.faults


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("No", "No"),
        ("true", True),
        ("012", 12),
        ("0o14", 12),
        ("0x10", 16),
        ("1e3", 1000.0),
        (".75", 0.75),
        ("~", None),
        ("null", None),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("[1, a]", [1, "a"]),
        ("{a: 1.5}", {"a": 1.5}),
        ("", None),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    """YAML 1.2 core schema: no sexagesimals, no yes/no booleans, no dates."""
    read = parse_value(text)
    assert read == value
    assert type(read) is type(value)


def test_infinity_is_a_number():
    """``.inf`` is a float of YAML 1.2 (whether a key takes it is the model's business)."""
    assert math.isinf(parse_value(".inf"))


def test_every_path_knows_its_line_and_column():
    """The place of a mapping's entry is its key; of a list's entry, the entry. Lines and columns start at 1."""
    document = parse_document("a: 1\nb:\n  c: [10, 20]\n  d:\n    - x\n    - {y: 1}\n", file="f.yaml")
    places = {path: (p.line, p.column) for path, p in document.places.items()}
    assert places == {
        (): (1, 1),
        ("a",): (1, 1),
        ("b",): (2, 1),
        ("b", "c"): (3, 3),
        ("b", "c", 0): (3, 7),
        ("b", "c", 1): (3, 11),
        ("b", "d"): (4, 3),
        ("b", "d", 0): (5, 7),
        ("b", "d", 1): (6, 7),
        ("b", "d", 1, "y"): (6, 8),
    }
    assert str(document.place(("b", "nothing"))) == "f.yaml:2", "what is absent stands where it should be"


def test_two_equal_keys_are_a_fault_with_both_lines():
    """A duplicate key is reported with both lines and where it is; the first value is kept."""
    document = parse_document("a: 1\nb: {c: 1}\nd: 2\na: 3\n", file="f.yaml")
    assert document.data == {"a": 1, "b": {"c": 1}, "d": 2}
    assert [str(f) for f in document.faults] == [
        "f.yaml:4: a: is given twice, on lines 1 and 4; keep one, or rename one"
    ]


def test_aliases_are_values_and_a_loop_is_a_fault():
    """An alias stands for its anchor's value; one that contains itself is reported, not followed for ever."""
    assert parse_document("a: &x {k: 1}\nb: *x\n").data == {"a": {"k": 1}, "b": {"k": 1}}
    (fault,) = parse_document("a: &x [1, *x]\n").faults
    assert "contains itself" in str(fault)


def test_aliases_cannot_blow_up():
    """A few lines of aliases that expand to millions of values are refused."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    with pytest.raises(ScenarioError, match="expands to more than"):
        parse_document("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"- 1\n- 2\n", ":1: holds a list at its top"),
        (b"just words\n", ":1: holds a single value at its top"),
        (b"a: [1\nb: 2\n", "is not YAML"),
        (b"a: 1\n\tb: 2\n", ":2: is not YAML"),
        (b"a: 1\n---\nb: 2\n", "is not YAML"),
        (b"a: \x01\n", "is not YAML"),
        (b"a: \xff\n", "is not UTF-8 text (byte 3)"),
        (b"a: " + b"[" * 20_000 + b"]" * 20_000, "is nested too deeply"),
        (b"a: *nobody\n", ":1: is not YAML"),
    ],
)
def test_what_is_no_scenario_is_said_clearly(tmp_path, text, words):
    """An unusable file gives one fault that names the file, the line where there is one, and what is wrong."""
    file = tmp_path / "s.yaml"
    file.write_bytes(text)
    with pytest.raises(ScenarioError) as caught:
        read_document(file)
    assert str(caught.value).startswith(str(file))
    assert words in str(caught.value)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    """No file, and a folder in its place, each have their own words."""
    with pytest.raises(ScenarioError, match="there is no such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(ScenarioError, match="is a folder"):
        read_document(tmp_path)


def test_an_explicit_tag_other_than_plain_is_a_fault():
    """A scenario holds plain values: foreign tags and merge keys are reported where they stand."""
    document = parse_document("a: !python/object 1\nb: !!int x\n<<: {c: 1}\n", file="f")
    assert [(f.place.line, f.path) for f in document.faults] == [(1, ("a",)), (2, ("b",)), (3, ("<<",))]


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path):
    """Editors that write a BOM do not make an unknown key."""
    file = tmp_path / "s.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_document(file).data == {"name": "x"}


def test_lookup_never_raises():
    """A path through data of another shape is absent."""
    data = {"a": [1, {"b": 2}]}
    assert lookup(data, ("a", 1, "b")) == 2
    assert [lookup(data, p) for p in [("a", 2), ("a", "b"), ("x", "y"), ("a", 0, "z")]] == [None] * 4
