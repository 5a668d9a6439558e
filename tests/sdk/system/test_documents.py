"""YAML and JSON mean what their authors wrote."""

import pytest

from herringbone.system.documents import decoded, read_document
from herringbone_contract.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-0.5", -0.5),
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("+1", "+1"),
        (".5", ".5"),
        (".inf", ".inf"),
        ("NaN", "NaN"),
        ("=", "="),
        ("no", "no"),
        ("On", "On"),
        ("2026-01-31", "2026-01-31"),
        ("2026-13-45", "2026-13-45"),
        ("2026-01-31 10:00:00", "2026-01-31 10:00:00"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("Null", None),
        ("'3'", "3"),
        ('"true"', "true"),
        ("!!str 3", "3"),
        ("a: {b: [1, x]}", {"a": {"b": [1, "x"]}}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}", {"a": {"b": 1}, "c": {"b": 2}}),
        ('{"a": "\\ud83d\\ude00", "b":\t"\\/"}', {"a": "\U0001f600", "b": "/"}),
        ("{a: 1e-3}", {"a": 0.001}),
        ("<<", "<<"),
    ],
)
def test_plain_words_mean_what_they_say(text, value):
    read = read_document(text, "job.yaml")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "lines 1 and 3: the key 'a' stands twice; keep one"),
        ("x:\n  a: 1\n  a: 1", "lines 2 and 3: the key 'a' stands twice"),
        ("x: {a: 1, a: 1}", "line 1: the key 'a' stands twice"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        ("{1: a, '1': b}", "the key '1' stands twice"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": -Infinity}', "-Infinity is no number of JSON"),
        ('{"a": 1e999}', "the number 1e999 is too large"),
        ("a: -1e999", "the number -1e999 is too large"),
        ("a: !!str {b: 1}", "is not read here"),
        # More than a float can hold, and fewer digits than the longest number.
        ("a: " + "9" * 320, "is too large; quote it for text"),
        ("a: " + "9" * 5000, "has 5000 digits"),
        ('{"a": ' + "9" * 5000 + "}", "has 5000 digits"),
        ("a: [", "cannot be read as YAML or JSON: "),
        ("a: !!python/object:os.system x", "the tag tag:yaml.org,2002:python/object:os.system is not read here"),
        ("a: !!int x", "the tag tag:yaml.org,2002:int is not read here"),
        ("a: !!timestamp 2026-13-45", "is not read here"),
        ("a: !!binary x", "is not read here"),
        ("a: !!set {x}", "is not read here"),
        ("a: !mine {x: 1}", "is not read here"),
        ("? [a]\n: b", "found unhashable key"),
        ("a: &x [*x]", "found unconstructable recursive node"),
        ("a: {<<: 3}", "expected a mapping"),
        ("a: \0", "cannot be read as YAML or JSON: "),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ('{"a": "\\ud800"}', "has half of a character"),
        ("a: \ud800", "has half of a character"),
        ('a: "\\ud800"', ""),
        ("[" * 100_000, "nested deeper than 100 levels"),
        ("[" * 100_000 + "]" * 100_000, "nested deeper than 100 levels"),
        ("{a: " * 5000, "nested deeper than 100 levels"),
        ("- " * 5000, "nested deeper than 100 levels"),
    ],
)
def test_a_broken_document_is_one_line(text, message):
    with pytest.raises(InputError) as caught:
        read_document(text, "job.yaml")
    assert str(caught.value).startswith("job.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    # PyYAML's name of a document that is a text.
    assert "unicode string" not in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
def test_files_are_read_in_each_encoding_that_yaml_has(encoding):
    """A job file in UTF-16 was "'utf-8' codec can't decode byte 0xff", or unreadable without a word."""
    assert decoded("epochs: 3  # ☃\n".encode(encoding), "job.yaml") == "epochs: 3  # ☃\n"


def test_another_encoding_is_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"job.yaml: it is not in UTF-8 .*; save it in UTF-8, as with `iconv"):
        decoded("name: grün\n".encode("latin-1"), "job.yaml")
