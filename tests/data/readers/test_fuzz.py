"""Damaged and malicious files of every format are either read or rejected with a UserError, quickly."""

from __future__ import annotations

import io
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from scipy.sparse import csr_array, issparse

from fco_cli.data.describe import Description, profile_csv, profile_tables
from fco_cli.data.format import OPTIONAL, REQUIRED
from fco_cli.data.preparation import Preparation, Recipe, prepared
from fco_cli.data.readers import FORMATS, fingerprint, read, read_raw_tables
from fco_cli.data.readers.matrices import Npz
from fco_cli.errors import UserError

SECONDS, BYTES = 5, 1 << 30  # for one small file
FEW, MANY = 20, 3000
X, Y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 1, 0])
CLIENT, SPLIT = np.array(["a", "a", "b", "b", "c", "c"]), np.array(["train", "test"] * 3)


def _npz() -> bytes:
    file = io.BytesIO()
    names = {
        "features": np.array(["height", "ward"]),
        "categories": np.array(["a", "b"]),
        "category_of": np.array([1, 1]),
    }
    x = np.column_stack([np.where(X[:, 0] == 4, np.nan, X[:, 0]), Y])
    np.savez_compressed(file, x=x, y=Y, client=CLIENT, split=SPLIT, weights=X[:, 0], **names)
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


def _leaf() -> bytes:
    user = {"x": [[0.5, 1], [2, 1e3]], "y": [0, 1]}
    return json.dumps({"users": ["a", "b"], "num_samples": [2, 2], "user_data": {"a": user, "b": user}}).encode()


def _tff() -> bytes:
    h5py = pytest.importorskip("h5py")
    file = io.BytesIO()
    with h5py.File(file, "w") as content:
        for name in "ab":
            client = content.create_group(f"examples/{name}")
            client.create_dataset("pixels", data=np.ones((4, 3, 2)), chunks=(2, 3, 2), compression="gzip")
            client["label"] = np.arange(4)
    return file.getvalue()


def _csv() -> bytes:
    header = b'client,height,"wei,ght",y,split\r\n'
    return header + b'a,1.5,2,no,train\na,-1e3,4,yes,test\n"b",0.1,True,no,train\nb,7,8,yes,test\n'


def _parquet() -> bytes:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"client": CLIENT, "height": X[:, 0], "weight": Y, "y": ["no", "yes"] * 3, "split": SPLIT}
    file = io.BytesIO()
    parquet.write_table(pa.table({name: pa.array(column) for name, column in columns.items()}), file)
    return file.getvalue()


def _tsv() -> bytes:
    return b"\xef\xbb\xbfclient\theight\tward\ty\na\t1.5\tred\t0\na\t?\tblue\t1\nb\tNA\t\t0\nb\t7\tred\t1\n"


def _svmlight() -> bytes:
    return b"-1 qid:1 1:1.5 4:1e3 # a\n1 qid:1\n-1 qid:20 2:-.5\n1 qid:20 1:7 3:8\n"


def _sparse_npz() -> bytes:
    file, x = io.BytesIO(), csr_array(X)
    parts = {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": x.shape}
    np.savez(file, **parts, y=Y, client=CLIENT)
    return file.getvalue()


def _sql() -> bytes:
    rows = ", ".join(f"('{client}', {x}, {y})" for client, x, y in zip(CLIENT, X[:, 0], Y, strict=True))
    query = f"WITH stays(client, height, y) AS (VALUES {rows}) SELECT * FROM stays\n"
    return f"-- url: sqlite://\n{query}".encode()


SAMPLES: dict[str, Callable[[], bytes]] = {
    ".npz": _npz, ".npy": _npy, ".json": _leaf, ".h5": _tff, ".csv": _csv, ".tsv": _tsv, ".parquet": _parquet,
    ".svm": _svmlight, ".libsvm": _svmlight, ".sql": _sql,
}  # fmt: skip
KINDS = [pytest.param(kind, SAMPLES[kind.suffix], id=kind.suffix) for kind in FORMATS]
TOKENS = [
    b"[", b"]", b"{", b"}", b'"', b",", b"\n", b"_", b"(", b"'", b"1e999", b"-", b"NaN", b"null", b"true", b"9" * 400,
    b"\xff", bytes(8), b"\xff" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xed\xa0\x80", b"\\ud800", b"[" * 5000,
    b"2024-01-31", b"|O", b"<U0", b"<M8[s]", b"\x1b[31m", b"PK\1\2",
]  # fmt: skip
PLACE = st.floats(0, 1, exclude_max=True)  # position relative to the length
CHANGES = st.lists(
    st.tuples(PLACE, st.sampled_from(["replace", "insert", "cut"]), st.sampled_from(TOKENS) | st.binary(max_size=4)),
    min_size=1,
    max_size=8,
)


def mutated(content: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    for place, kind, token in changes:
        at = int(place * len(content))
        after = at if kind == "insert" else at + max(1, len(token))
        content = content[:at] + (b"" if kind == "cut" else token) + content[after:]
    return content


def read_or_refuse(path: Path) -> None:
    """Read a file as `fco-data describe` does, and compute its fingerprint."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    message = ""
    try:
        fingerprint(path)
        if tables := read_raw_tables(path):
            profile_csv(profile_tables(tables))
        data = read(path)
        Description(data).rows()
        if issparse(data.x):
            data.as_clients("float64")
            return
        preparation = prepared(data, Recipe(flag_missing=True, fill="median"))
        assert np.isfinite(preparation.apply(data.raw)).all()
        assert Preparation.of_json(preparation.as_json(), "here") == preparation
    except UserError as problem:
        message = str(problem)
    assert message.isprintable()
    assert len(message) < 1000
    assert time.process_time() - start < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES


def budgets(test: Callable) -> Callable:
    """Set the number of cases: a few in every run, thousands in `make test-all`."""
    cases = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
    return pytest.mark.parametrize("cases", cases)(test)


def fuzz(cases: int, test: Callable) -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings(max_examples=cases, deadline=None, database=None, suppress_health_check=quiet)(test)()


def test_every_format_has_a_sample():
    assert {kind.suffix for kind in FORMATS} == set(SAMPLES)


@budgets
@pytest.mark.parametrize(("kind", "make"), [*KINDS, pytest.param(Npz(), _sparse_npz, id="sparse")])
def test_mutated_bytes(kind, make, cases, tmp_path):
    sample = make()
    path = tmp_path / f"x{kind.suffix}"
    if kind.single_file_error:
        np.save(tmp_path / "y.npy", Y)
        np.save(tmp_path / "client.npy", CLIENT)
    source = tmp_path if kind.single_file_error else path
    path.write_bytes(sample)
    read(source)  # the undamaged sample is valid

    @given(CHANGES)
    def test(changes):
        path.write_bytes(mutated(sample, changes))
        read_or_refuse(source)

    fuzz(cases, test)


ANY_ARRAY = arrays_of.arrays(
    dtype=arrays_of.scalar_dtypes()
    | arrays_of.unicode_string_dtypes(max_len=3)
    | arrays_of.byte_string_dtypes(max_len=3),
    shape=arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
NUMBERS = st.floats(width=64) | st.integers(-(2**63), 2**63 - 1)
ROWS = arrays_of.arrays(np.float64, (4, 2), elements=st.floats(width=64))


@budgets
def test_arrays_with_arbitrary_types_and_shapes(cases, tmp_path):
    good = {"x": X, "y": Y, "client": CLIENT, "split": SPLIT}

    @given(st.dictionaries(st.sampled_from([*REQUIRED, *OPTIONAL, "z"]), ANY_ARRAY | ROWS))
    def test(changes):
        np.savez(tmp_path / "d.npz", **(good | changes))
        read_or_refuse(tmp_path / "d.npz")

    fuzz(cases, test)


@budgets
def test_sparse_arrays_with_arbitrary_types_and_shapes(cases, tmp_path):
    good = dict(np.load(io.BytesIO(_sparse_npz())))

    @given(st.dictionaries(st.sampled_from([*good, "format"]), ANY_ARRAY, min_size=1, max_size=2))
    def test(changes):
        np.savez(tmp_path / "d.npz", **(good | changes))
        read_or_refuse(tmp_path / "d.npz")

    fuzz(cases, test)


JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.integers(10**18, 10**20) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "a"]), inner, max_size=3),
    max_leaves=8,
)


@budgets
def test_shards_with_arbitrary_content(cases, tmp_path):
    @given(st.dictionaries(st.sampled_from(["users", "num_samples", "user_data", "a", "b", "x", "y"]), JSON))
    def test(changes):
        shard = json.loads(_leaf())
        shard |= {key: value for key, value in changes.items() if key in shard}
        if isinstance(shard["user_data"], dict):
            shard["user_data"] |= {key: value for key, value in changes.items() if key in "ab"}
            shard["user_data"]["b"] = {"x": [[1.0, 2.0]], "y": [1]} | {k: v for k, v in changes.items() if k in "xy"}
        (tmp_path / "d.json").write_text(json.dumps(shard))
        read_or_refuse(tmp_path / "d.json")

    fuzz(cases, test)


CELL = st.sampled_from(
    ["", "?", "red", "1,5", "1", "-2.5", "1e400", "a", "train", "true", "NA", "nan", "1_0", "2024-01-31", '"', '"",']
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


@budgets
def test_tables_with_arbitrary_cells(cases, tmp_path):
    @given(st.lists(st.lists(CELL | TEXT, min_size=3, max_size=5), max_size=6))
    def test(rows):
        text = "\n".join(["client,y,height", "a,1,2", "a,0,3", "b,1,4", "b,0,5", *(",".join(row) for row in rows)])
        (tmp_path / "d.csv").write_text(text, newline="")
        read_or_refuse(tmp_path / "d.csv")

    fuzz(cases, test)
