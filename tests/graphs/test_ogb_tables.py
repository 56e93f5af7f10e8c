"""Tables of OGB's folders, one by one: what is read, in which kind of number, and which file an error names."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.graphs.folders import write_folder

from fishnets.errors import DataError, FileFormatError, NonFiniteError
from fishnets.graphs.ogb_tables import PARTS, Tables, expect_rows, open_tables, whole_or_float32, with_reverses

KNOWN = {"ogbn_small": {"add_inverse_edge": "True"}, "ogbn_large": {"add_inverse_edge": "False"}}
LAYOUT = "The layout is raw/*.csv.gz"
NAN = float("nan")


def tables(tmp_path: Path, texts: dict[str, str] | None = None, meta: object = None) -> Tables:
    root = write_folder(tmp_path, texts or {}, {} if meta is None else meta)
    return open_tables(root, LAYOUT, KNOWN)


def one(tmp_path: Path, text: str) -> Tables:
    """A folder with one table."""
    return tables(tmp_path, {"raw/it": text})


def split(tmp_path: Path, meta: object = None, **parts: str) -> Tables:
    """A folder with a split into train, valid and test, each of which is empty unless given."""
    return tables(tmp_path, {f"split/random/{part}": parts.get(part, "") for part in PARTS}, meta)


def test_a_folder_says_where_its_tables_are(tmp_path):
    found = tables(tmp_path, meta={"split": "time"})
    assert found.path("raw/edge") == tmp_path / "raw" / "edge.csv.gz"
    assert found.meta == {"split": "time"}


def test_a_missing_folder_is_named_with_its_source(tmp_path):
    (tmp_path / "file").touch()
    for name in ("nothing", "file"):
        start = re.escape(f"There is no folder {tmp_path / name}. A data set in OGB's layout was expected: {LAYOUT}.")
        with pytest.raises(FileNotFoundError, match=f"{start} It is at ogb.stanford.edu$"):
            open_tables(tmp_path / name, LAYOUT, KNOWN, "It is at ogb.stanford.edu")
        with pytest.raises(FileNotFoundError, match=f"{start}$"):
            open_tables(str(tmp_path / name), LAYOUT, KNOWN)


def test_only_a_known_name_stands_for_meta(tmp_path, monkeypatch):
    for name in ("ogbn_small", "other"):
        (tmp_path / name).mkdir()
    assert open_tables(tmp_path / "ogbn_small", LAYOUT, KNOWN).flag("add_inverse_edge")
    monkeypatch.chdir(tmp_path / "ogbn_small")
    assert open_tables(".", LAYOUT, KNOWN).flag("add_inverse_edge")
    with pytest.raises(FileNotFoundError, match=r"other/meta\.json, .* named ogbn_small or ogbn_large need none\. The"):
        open_tables(tmp_path / "other", LAYOUT, KNOWN)
    (tmp_path / "ogbn_small" / "meta.json").write_text('{"add_inverse_edge": "False"}')  # comes before the name
    assert not open_tables(tmp_path / "ogbn_small", LAYOUT, KNOWN).flag("add_inverse_edge")


@pytest.mark.parametrize("contents", [b"", b"{'split': 'time'}", b'{"split": "\xff"}'])
def test_meta_that_cannot_be_read_is_named(tmp_path, contents):
    (tmp_path / "meta.json").write_bytes(contents)
    with pytest.raises(FileFormatError, match=r"meta\.json is not JSON: "):
        open_tables(tmp_path, LAYOUT, KNOWN)


def test_flags_are_words_or_truth_values(tmp_path):
    found = tables(tmp_path, meta={"a": "True", "b": True, "c": "False", "d": False, "e": "true", "f": 1})
    assert [found.flag(name) for name in "abcd"] == [True, True, False, False]
    assert found.flag("missing", "True")
    assert not found.flag("c", "True")  # the default is for what is not there
    for name, value in {"e": "true", "f": "1", "missing": "None"}.items():
        with pytest.raises(FileFormatError, match=rf'meta\.json gives "{name}" as {value} but "True" or "False" was'):
            found.flag(name)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1,-2.5\n3e2,.25\n", [[1, -2.5], [300, 0.25]]),
        ("1,2", [[1, 2]]),
        (" 1 , 2\r\n3,4\r\n", [[1, 2], [3, 4]]),
        ("7\n8\n", [[7], [8]]),
        ("1,\n,4\n", [[1, NAN], [NAN, 4]]),
        ("1,nan\ninf,4\n", [[1, NAN], [np.inf, 4]]),
        ("\n1,2\n\n3,4\n\n", [[1, 2], [3, 4]]),
    ],
)
def test_numbers_between_commas_are_read_and_empty_cells_are_nan(tmp_path, text, rows, kind):
    table = one(tmp_path, text).table("raw/it", kind)
    np.testing.assert_array_equal(table, np.array(rows, kind), strict=True)


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_a_table_without_rows_is_empty(tmp_path, text):
    found = one(tmp_path, text)
    assert len(found.table("raw/it", np.float32)) == 0
    assert found.whole_numbers("raw/it", columns=2).shape == (0, 2)
    assert len(found.features("raw/it", 0, "edge")) == 0
    with pytest.raises(DataError, match=r"it\.csv\.gz has 0 rows but 4 were expected, one for each edge\.$"):
        found.features("raw/it", 4, "edge")


def test_a_missing_table_is_named_with_the_layout(tmp_path):
    found = tables(tmp_path)
    (tmp_path / "raw" / "it.csv").parent.mkdir()
    (tmp_path / "raw" / "it.csv").write_text("1\n")  # not compressed: another file
    message = re.escape(f"There is no file {tmp_path / 'raw' / 'it.csv.gz'}. {LAYOUT}.")
    for read in (
        lambda: found.table("raw/it", np.float32),
        lambda: found.whole_numbers("raw/it", columns=1),
        lambda: found.features("raw/it", 1, "node"),
        lambda: found.optional_features("raw/it", 1, "node", required=True),
        lambda: found.labels("raw/it", 1, "node"),
    ):
        with pytest.raises(FileNotFoundError, match=f"^{message}$"):
            read()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("node,label\n0,1\n", "'node'"),
        ("0,1\n#2,3\n", "'#2'"),
        ("0;1\n", "'0;1'"),
        ("0\t1\n", r"'0\\t1'"),
        ("0,1\n2\n", "columns changed from 2 to 1"),
        ('0,1\n"2",3\n', "'\"2\"'"),
        ("0x10\n", "'0x10'"),
        ("\ufeff1\n", "ufeff1"),
    ],
)
def test_text_that_is_no_table_of_numbers_is_quoted(tmp_path, text, reason):
    message = r"raw/it\.csv\.gz is not a table of numbers between commas, without a header and .* each row: .*"
    with pytest.raises(FileFormatError, match=message + reason):
        one(tmp_path, text).table("raw/it", np.float64)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    found = one(tmp_path, "")
    found.path("raw/it").write_bytes(gzip.compress(b"1,\xff\n"))
    with pytest.raises(FileFormatError, match=r"it\.csv\.gz is not a table of numbers .* can't decode byte 0xff"):
        found.table("raw/it", np.float64)


def test_a_file_that_is_not_whole_is_refused(tmp_path):
    found = one(tmp_path, "1,2\n3,4\n")
    path, whole = found.path("raw/it"), found.path("raw/it").read_bytes()
    wrong_sum = whole[:-8] + bytes(byte ^ 1 for byte in whole[-8:-4]) + whole[-4:]
    garbled = whole[:10] + b"\xff\xff" + whole[12:]
    for damaged in (whole[:-4], whole[:5], whole + b"more", wrong_sum, garbled, b"PK\x03\x04"):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"it\.csv\.gz is damaged or not compressed with gzip: "):
            found.table("raw/it", np.float64)


def test_whole_numbers_may_be_written_as_decimals(tmp_path):
    table = one(tmp_path, "0,2.0\n1e3,-4\n9007199254740992,5\n").whole_numbers("raw/it", columns=2)
    np.testing.assert_array_equal(table, np.array([[0, 2], [1000, -4], [2**53, 5]]), strict=True)


@pytest.mark.parametrize("cell", ["0.5", "", "nan", "inf", "-inf"])
def test_the_first_row_that_is_not_whole_is_named(tmp_path, cell):
    with pytest.raises(FileFormatError, match=r"it\.csv\.gz, row 2, is \[.*\] but whole numbers were expected\.$"):
        one(tmp_path, f"0,1\n2,{cell}\n{cell},3\n").whole_numbers("raw/it", columns=2)


@pytest.mark.parametrize(("columns", "text"), [(1, "0,1\n"), (2, "0\n"), (2, "0,1,2\n")])
def test_another_number_of_columns_is_named(tmp_path, columns, text):
    given = text.count(",") + 1
    with pytest.raises(FileFormatError, match=rf"it\.csv\.gz has {given} columns but {columns} were expected\. The l"):
        one(tmp_path, text).whole_numbers("raw/it", columns)


def test_features_are_float32_unless_asked_otherwise(tmp_path):
    found = one(tmp_path, "0.1,2\n3,16777217\n")
    single, double = found.features("raw/it", 2, "node"), found.features("raw/it", 2, "node", np.float64)
    assert torch.equal(single, torch.tensor([[0.1, 2], [3, 16777216]]))
    assert torch.equal(double, torch.tensor([[0.1, 2], [3, 16777217]], dtype=torch.float64))


def test_features_too_large_for_their_kind_are_not_finite(tmp_path):
    found = one(tmp_path, "".join(f"{i},1e39\n" if i else "0,1\n" for i in range(8)))
    message = r"it\.csv\.gz has 7 rows with empty, NaN or infinite cells: 2, 3, 4, 5, 6 and 2 more\. Features must"
    with pytest.raises(NonFiniteError, match=message):
        found.features("raw/it", 8, "node")
    assert found.features("raw/it", 8, "node", np.float64).shape == (8, 2)


def test_optional_features_are_checked_where_there_are_some(tmp_path):
    found = one(tmp_path, "1\n2\n")
    assert found.optional_features("raw/none", 2, "edge", required=False) is None
    for required in (True, False):
        assert found.optional_features("raw/it", 2, "edge", required).tolist() == [[1], [2]]
        with pytest.raises(DataError, match=r"it\.csv\.gz has 2 rows but 3 were expected, one for each edge\.$"):
            found.optional_features("raw/it", 3, "edge", required)
    assert found.optional_features("raw/it", 2, "edge", False, np.float64).dtype == torch.float64


def test_labels_are_whole_unless_some_are_not(tmp_path):
    classes = one(tmp_path / "classes", "0,16777217\n-1,3\n").labels("raw/it", 2, "node")
    assert classes.dtype == torch.int64
    assert classes.tolist() == [[0, 16777217], [-1, 3]]
    for i, cell in enumerate(("", "0.5", "inf")):
        labels = one(tmp_path / str(i), f"0,1\n{cell},3\n").labels("raw/it", 2, "node")
        expected = torch.tensor([[0, 1], [float(cell or "nan"), 3]])
        torch.testing.assert_close(labels, expected, equal_nan=True, rtol=0, atol=0)
    with pytest.raises(DataError, match=r"it\.csv\.gz has 2 rows but 1 were expected, one for each graph\.$"):
        one(tmp_path, "0\n1\n").labels("raw/it", 1, "graph")


def test_the_named_split_is_taken_and_else_the_only_one(tmp_path):
    found = split(tmp_path)
    (tmp_path / "split" / "notes.txt").touch()  # a file is no split
    assert found.split() == "split/random"
    (tmp_path / "split" / "time").mkdir()
    with pytest.raises(DataError, match=r"was expected to hold one split but has random, time\. Name the one .* The l"):
        found.split()
    assert split(tmp_path, {"split": "time"}).split() == "split/time"
    with pytest.raises(DataError, match=r"split was expected to hold one split but has none\. Name the one"):
        one(tmp_path / "none", "1\n").split()


def test_parts_are_as_listed_and_some_may_be_empty(tmp_path):
    parts = split(tmp_path, train="3\n0\n3\n", test="2\n").parts(5, "node")
    assert list(parts) == ["train", "valid", "test"]
    assert {part: numbers.tolist() for part, numbers in parts.items()} == {"train": [3, 0, 3], "valid": [], "test": [2]}
    assert {numbers.dtype for numbers in parts.values()} == {np.dtype(np.int64)}
    nothing = split(tmp_path / "nothing").parts(0, "graph")
    assert [len(numbers) for numbers in nothing.values()] == [0, 0, 0]


def test_parts_name_what_does_not_exist_or_is_in_two(tmp_path):
    strange = split(tmp_path / "strange", valid="5\n-1\n4\n6\n7\n8\n9\n")
    message = r"valid\.csv\.gz lists 6 graphs that do not exist: 5, -1, 6, 7, 8 and 1 more\. .* 5 graphs, 0 to 4\.$"
    with pytest.raises(DataError, match=message):
        strange.parts(5, "graph")
    twice = split(tmp_path / "twice", train="0\n1\n2\n", valid="2\n3\n", test="2\n0\n4\n")
    with pytest.raises(DataError, match=r"split/random puts 2 nodes into more than one part: 0, 2\.$"):
        twice.parts(5, "node")
    with pytest.raises(FileFormatError, match=r"test\.csv\.gz, row 1, is \[0\.5\] but whole numbers were expected"):
        split(tmp_path / "half", test="0.5\n").parts(5, "node")


def test_reading_twice_gives_the_same_and_writes_nothing(tmp_path):
    found = one(tmp_path, "1,\n3,4\n")
    before = sorted(tmp_path.rglob("*"))
    first, second = (found.labels("raw/it", 2, "node") for _ in range(2))
    assert torch.equal(first.isnan(), second.isnan())
    assert torch.equal(first.nan_to_num(), second.nan_to_num())
    assert sorted(tmp_path.rglob("*")) == before


def test_expected_rows_are_counted_by_their_owner():
    expect_rows(Path("raw/it.csv.gz"), np.zeros((3, 2)), 3, "edge")
    with pytest.raises(DataError, match=r"^raw/it\.csv\.gz has 3 rows but 2 were expected, one for each edge\.$"):
        expect_rows(Path("raw/it.csv.gz"), np.zeros((3, 2)), 2, "edge")


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_one_number_that_is_not_whole_makes_all_float32(kind):
    whole = torch.tensor([[-2.0, 0.0], [3.0, 1e6]], dtype=kind)
    assert whole_or_float32(whole).dtype == torch.int64
    assert whole_or_float32(whole).tolist() == [[-2, 0], [3, 1_000_000]]
    for strange in (0.5, NAN, float("inf")):
        mixed = whole.clone()
        mixed[0, 1] = strange
        torch.testing.assert_close(whole_or_float32(mixed), mixed.float(), equal_nan=True, rtol=0, atol=0)
    assert whole_or_float32(torch.empty(0, 2, dtype=kind)).dtype == torch.int64


def test_each_edge_is_followed_by_its_reverse():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    both, twice = with_reverses(np.array([[0, 1], [2, 2]]), features)
    np.testing.assert_array_equal(both, np.array([[0, 1], [1, 0], [2, 2], [2, 2]]), strict=True)
    assert torch.equal(twice, features[[0, 0, 1, 1]])
    none, without = with_reverses(np.empty((0, 2), np.int64), None)
    assert none.shape == (0, 2)
    assert without is None


def test_a_blank_line_is_an_unknown_label_of_a_single_task_alone(tmp_path):
    assert len(tables(tmp_path / "one", {"raw/it": "1\n\n0\n"}).labels("raw/it", 3, "node")) == 3
    assert len(tables(tmp_path / "two", {"raw/it": "1,0\n0,1\n\n"}).labels("raw/it", 2, "node")) == 2


def test_labels_are_as_many_as_the_tasks_that_meta_gives(tmp_path):
    found = tables(tmp_path, {"raw/it": "1,0,\n0,1,\n"}, meta={"num tasks": "2"})
    with pytest.raises(DataError, match=r'it\.csv\.gz has 3 columns but .*meta\.json gives "num tasks" as 2'):
        found.labels("raw/it", 2, "node")


def test_numbers_too_large_to_be_told_apart_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"row 2, is .* but whole numbers up to 2\^53 were"):
        one(tmp_path, "1\n1e30\n").whole_numbers("raw/it", 1)
    for cell in ("1e300", "-1e17"):
        with pytest.raises(FileFormatError, match=r"it\.csv\.gz, row 2, is .* but numbers up to 2\^53 were expected"):
            one(tmp_path, f"1\n{cell}\n").numbers("raw/it", 2, "node")
