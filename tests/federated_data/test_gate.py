"""The gate for data files: each attack ends in one line, before memory or time is spent on it."""

from __future__ import annotations

import io
import json
import os
import socket
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.federated_data.readers import FORMATS, fingerprint, read
from fco_cli.federated_data.source import Columns, Format

CSV = "client,height,weight,y\na,1,2,0\na,3,4,1\nb,5,6,0\nb,7,8,1\n"


def refusal(path: Path, **options) -> str:
    """What reading says, and hashing as well where it finds the same fault."""
    start = time.process_time()
    with pytest.raises(UserError) as problem:
        read(path, **options)
    assert time.process_time() - start < 5
    assert str(problem.value).isprintable()
    return str(problem.value)


def csv(folder: Path, text: str = CSV) -> Path:
    (folder / "t.csv").write_text(text)
    return folder / "t.csv"


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.ending)
class TestPlaces:
    """What is no data file, for every format that there is."""

    def source(self, kind: Format, folder: Path, name: str = "d") -> tuple[Path, Path]:
        """What is read, and the file in question."""
        path = folder / f"{name}{kind.ending}"
        return (folder if kind.not_alone else path), path

    def test_a_pipe_is_not_waited_for(self, kind, tmp_path):
        source, path = self.source(kind, tmp_path)
        os.mkfifo(path)
        assert "is not a regular file" in refusal(source)

    def test_a_device_is_not_read(self, kind, tmp_path):
        source, path = self.source(kind, tmp_path)
        path.symlink_to("/dev/zero")
        assert "is not a regular file" in refusal(source)

    def test_a_socket_is_not_read(self, kind, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        source, path = self.source(kind, Path())
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            assert "is not a regular file" in refusal(source)

    def test_a_folder_with_a_file_s_ending_is_none(self, kind, tmp_path):
        (tmp_path / f"d{kind.ending}").mkdir()
        message = refusal(tmp_path if kind.not_alone else tmp_path / f"d{kind.ending}")
        assert "is not a regular file" in message or "holds nothing that is known" in message

    def test_an_empty_file_is_said_to_be_empty(self, kind, tmp_path):
        source, path = self.source(kind, tmp_path)
        path.touch()
        assert f"{path}: is empty" in refusal(source)

    def test_forty_gigabytes_of_nothing_are_neither_read_nor_hashed(self, kind, tmp_path):
        source, path = self.source(kind, tmp_path)
        with path.open("wb") as file:
            file.truncate(40 << 30)
        refusal(source)
        start = time.process_time()
        with pytest.raises(UserError):
            fingerprint(source)
        assert time.process_time() - start < 5

    def test_a_file_that_may_not_be_read_is_named(self, kind, tmp_path, monkeypatch):
        source, path = self.source(kind, tmp_path)
        path.write_bytes(b"anything")
        monkeypatch.setattr(Path, "stat", _denied)
        assert "cannot be read: Permission denied" in refusal(source)

    def test_a_link_out_of_a_folder_is_not_followed(self, kind, tmp_path):
        if kind.not_in_folder:
            return  # a folder of such files is refused as one
        (tmp_path / "secret").write_bytes(b"anything")
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / f"d{kind.ending}").symlink_to(tmp_path / "secret")
        assert "is a link to a file outside of" in refusal(tmp_path / "data")

    def test_a_name_in_another_encoding_is_refused(self, kind, tmp_path):
        source, path = self.source(kind, tmp_path, "m\udcfcller")
        path.write_bytes(b"anything")
        assert "must be printable text" in refusal(source)


def _denied(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_path_that_cannot_exist_is_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "none.csv")
    assert "printable" in refusal(Path("a\0b.csv"))
    assert "cannot be read: File name too long" in refusal(tmp_path / ("a" * 300 + ".csv"))


def test_what_lies_deep_in_a_folder_is_not_searched_for(tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    csv(tmp_path / "deep" / "deeper")
    assert "holds nothing that is known" in refusal(tmp_path)


# ---- tables


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CSV.replace("weight", "height"), "columns: given more than once: height"),
        (CSV.replace("weight", "y"), "columns: given more than once: y"),
        (CSV.replace("weight", ""), "column 3 has no name"),
        (CSV.replace(",4,", ",2024-01-31,"), "line 3: column 'weight' is '2024-01-31'; dates are no numbers"),
        (CSV.replace(",4,", ",31.1.2024 12:00,"), "dates are no numbers"),
        (CSV.replace(",4,", ",1_000,"), "column 'weight' is '1_000'; every feature must be a number"),
        (CSV.replace(",4,", f",{'9' * 400},"), "feature 'weight' is inf; every value must be finite"),
        (CSV.replace(",4,", ",4,4,"), "line 3 has 5 cells, the header has 4"),
        (CSV.replace(",4,", ","), "line 3 has 3 cells, the header has 4"),
        (CSV.replace("a,1", ",1"), "line 2: column 'client' is empty"),
        (CSV.replace("a,1", '"a,1'), "is not a CSV file that can be read: unexpected end of data"),
        (CSV.replace("a,1", "a" * 2000 + ",1"), "has 2000 characters; at most 1000 will do"),
        (CSV.replace("a,1", "a\0,1"), "a name holds the character NUL"),
        (CSV.replace("client,", "client" + "x" * (1 << 17)), "field larger than field limit"),
        ("\n" + CSV, "its first line is empty"),
        ("client,height,y\n", "array 'x' has shape (0, 1)"),
        ("client,y\na,1\n", "no column is left for the features"),
        (CSV.replace("client", "\x1b[31mclient"), "has no column 'client'; its columns are \\x1b[31mclient, height"),
    ],
)
def test_csv(tmp_path, text, says):
    assert says in refusal(csv(tmp_path, text))


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(CSV.replace("b,5", "é,5").encode("latin-1"))
    assert "is not a CSV file that can be read: 'utf-8' codec can't decode" in refusal(tmp_path / "t.csv")


def test_cells_of_a_csv_file_are_taken_as_they_are_written(tmp_path):
    text = 'client,x_1,flag,y\r\n007,0.1, TRUE ,a_1\r\n\r\n"007",1e3,false,b\r\n7,2,True,b\n7,-3,0,a_1\n'
    data = read(csv(tmp_path, "\ufeff" + text))
    assert data.clients.tolist() == ["007", "7"]
    assert data.x.tolist() == [[0.1, 1], [1000, 0], [2, 1], [-3, 0]]
    assert data.classes.tolist() == ["a_1", "b"]
    assert data.feature_names == ["x_1", "flag"]


def test_columns_must_be_different_and_there(tmp_path):
    path = csv(tmp_path)
    assert "label, client and split: given more than once: client" in refusal(path, columns=Columns(label="client"))
    assert "neither 'y' nor 'client' can be left out" in refusal(path, columns=Columns(drop=("y",)))
    assert "has no column 'note'" in refusal(path, columns=Columns(drop=("note",)))


def test_a_header_of_very_many_columns_is_answered_soon(tmp_path):
    names = ",".join(f"x{k}" for k in range(100_000))
    cells = ",".join(["1.5"] * 100_000)
    rows = "".join(f"{client},{cells},1\n" for client in "aabb")
    assert read(csv(tmp_path, f"client,{names},y\n{rows}")).x.shape == (4, 100_000)
    message = refusal(csv(tmp_path, f"klient,{names},y\n{rows}"))
    assert "its columns are klient, x0" in message
    assert message.endswith("and 99992 more")


class TestParquet:
    """Of tables whose types are known."""

    @pytest.fixture
    def write(self, tmp_path) -> Callable[..., Path]:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        def write(names: list[str], columns: list, **options) -> Path:
            parquet.write_table(
                pa.table([pa.array(c) for c in columns], names=names), tmp_path / "t.parquet", **options
            )
            return tmp_path / "t.parquet"

        return write

    def test_a_bomb_is_refused(self, write):
        zeros = np.zeros(3_000_000, np.int8)
        path = write(["client", "x", "y"], [zeros, zeros, zeros])
        assert path.stat().st_size < 100_000
        assert "would take 120 MB of memory, more than 200 times its size: looks like a bomb" in refusal(path)

    def test_more_than_the_memory_is_refused(self, write, monkeypatch):
        monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 10_000_000)
        zeros = np.zeros(3_000_000, np.int8)
        path = write(["client", "x", "y"], [zeros, zeros, zeros])
        assert "would take 120 MB of memory; this machine has 10 MB" in refusal(path)

    def test_a_long_text_that_is_repeated_is_refused(self, write):
        path = write(["client", "x", "y"], [["a" * 100_000] * 20, np.zeros(20), np.zeros(20)])
        assert "has 100000 characters" in refusal(path)

    @pytest.mark.parametrize(
        ("column", "says"),
        [
            (np.array(["2024-01-31"] * 4, "M8[D]"), "column 'x' holds date32[day]; dates are no numbers"),
            (np.array(["2024-01-31"] * 4, "M8[ns]"), "column 'x' holds timestamp[ns]; dates are no numbers"),
            (["1", "2", "3", "4"], "column 'x' holds string; every feature must be a number"),
            ([[1], [2], [3], [4]], "column 'x' holds list<element: int64>; every feature must be a number"),
            ([b"1", b"2", b"3", b"4"], "column 'x' holds binary; every feature must be a number"),
            ([1, 2, None, 4], "row 2: column 'x' is empty"),
        ],
    )
    def test_types(self, write, column, says):
        assert says in refusal(write(["client", "x", "y"], [["a", "a", "b", "b"], column, [0, 1, 0, 1]]))

    def test_columns_of_one_name(self, write):
        path = write(["client", "x", "x", "y"], [["a", "a", "b", "b"], range(4), range(4), [0, 1, 0, 1]])
        assert "columns: given more than once: x" in refusal(path)

    def test_all_kinds_of_numbers_and_names_are_read(self, write):
        from decimal import Decimal

        names = ["__index_level_0__", "client", "a.b", "flag", "money", "y", "split"]
        columns = [
            range(4),
            [1, 1, 2, 2],
            range(4),
            [True, False] * 2,
            [Decimal("1.5")] * 4,
            ["n", "y"] * 2,
            ["train"] * 4,
        ]
        data = read(write(names, columns, row_group_size=3))
        assert data.x.tolist() == [[0, 1, 1.5], [1, 0, 1.5], [2, 1, 1.5], [3, 0, 1.5]]
        assert data.feature_names == ["a.b", "flag", "money"]
        assert data.clients.tolist() == ["1", "2"]
        assert data.classes.tolist() == ["n", "y"]
        assert data.split.tolist() == ["train"] * 4


# ---- .npz and .npy


def arrays(**changes) -> dict[str, np.ndarray]:
    good = {"x": np.arange(8.0).reshape(4, 2), "y": np.array([0, 1, 0, 1]), "client": np.array(["a", "a", "b", "b"])}
    return good | changes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"features": np.array(["h", "h"])}, "features: given more than once: h"),
        ({"classes": np.array(["no", "no"])}, "classes: given more than once: no"),
        ({"x": np.zeros((4, 2), "M8[s]")}, "'x' must hold numbers, not datetime64[s]"),
        ({"client": np.array([b"\xff", b"a", b"b", b"b"])}, "'client' holds bytes that are not text"),
        ({"client": np.array(["a", "\ud800", "b", "b"])}, "'client' holds codes that are no characters"),
        (
            {"client": np.full(4, 0x110000, np.uint32).view("U1")},
            "'client' holds codes that are no characters",
        ),
        ({"x": np.zeros((4, 2), [("a", "f8")])}, "'x' must hold numbers"),
    ],
)
def test_npz(tmp_path, changes, says):
    np.savez(tmp_path / "d.npz", **arrays(**changes))
    assert says in refusal(tmp_path / "d.npz")


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_names_without_a_character_take_no_room_in_the_file_but_in_memory(tmp_path):
    np.savez(tmp_path / "d.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "d.npz", "a") as archive:
        archive.writestr("classes.npy", npy_header("|S0", (10**15,)))
    assert "array 'classes' would take 4 PB of memory" in refusal(tmp_path / "d.npz")


def test_what_numpy_never_writes_is_refused(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, **arrays())
    content = path.read_bytes()
    local, central = content.index(b"PK\3\4"), content.index(b"PK\1\2")
    encrypted = bytearray(content)
    encrypted[local + 6] |= 1
    encrypted[central + 8] |= 1
    path.write_bytes(encrypted)
    assert "'x.npy' is encrypted" in refusal(path)
    unknown = bytearray(content)
    unknown[local + 8] = unknown[central + 10] = 97
    path.write_bytes(unknown)
    assert "'x.npy' is compressed in a way that NumPy does not know" in refusal(path)
    path.write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x.npy", b"another")
    assert "arrays: given more than once: x" in refusal(path)


@pytest.mark.parametrize(
    "header",
    [
        "(" * 5000,
        "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
        "'''",
        "\\",
        "{" * 200,
        "-" * 9000,
    ],
)
def test_a_header_that_breaks_a_parser(tmp_path, header):
    content = header.encode("latin-1")
    np.savez(tmp_path / "d.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + len(content).to_bytes(2, "little") + content)
    assert "e.npz: " in refusal(tmp_path / "e.npz")


# ---- LEAF


def shard(**changes) -> bytes:
    user = {"x": [[0.5, 1], [2, 3]], "y": [0, 1]}
    return json.dumps(
        {"users": ["a", "b"], "num_samples": [2, 2], "user_data": {"a": user, "b": user}} | changes
    ).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 100_000, "does not begin with a brace"),
        (b'{"users":' + b"[" * 100_000, "lists in lists, hundreds deep"),
        (b"{}", "needs users and user_data"),
        (shard(users="ab"), "users must be a list of names"),
        (shard(users=5), "users must be a list of names"),
        (shard(users=[["a"], "b"]), "users must be a list of names"),
        (shard(users=["a", "a"]), "users: given more than once: a"),
        (shard(users=["a"]), "user_data must hold every user, and no other"),
        (shard(user_data=[1, 2]), "user_data must hold every user, and no other"),
        (shard(user_data={"a": 1, "b": 2}), "client 'a': needs x and y"),
        (shard(user_data={"a": {"x": 1, "y": 2}, "b": 2}), "client 'a': x has shape (), y ()"),
        (shard(user_data={"a": {"x": [["1"]], "y": [1]}, "b": 2}), "client 'a': x must be lists of numbers"),
        (shard(user_data={"a": {"x": [[10**400]], "y": [1]}, "b": 2}), "client 'a': x must be lists of numbers"),
        (shard(user_data={"a": {"x": [[1e300]], "y": [1]}, "b": 2}), "client 'a'"),
        (shard(user_data={"a": {"x": [[None]], "y": [1]}, "b": 2}), "client 'a': x must be lists of numbers"),
        (shard(num_samples={"a": 2, "b": 2}), "2 users but num_samples that are no list"),
        (shard(num_samples=[2, "2"]), "num_samples says 2"),
        (shard().replace(b'"b": {', b'"a": {'), "keys: given more than once: a"),
        (shard().replace(b'"b"', b'"\\ud800"'), "holds codes that are no characters"),
        (b'{"users": ' + b"9" * 5000 + b"}", "is not complete JSON"),
        (b"\xff\xfe{", "does not begin with a brace"),
    ],
)
def test_leaf(tmp_path, content, says):
    (tmp_path / "d.json").write_bytes(content)
    assert says in refusal(tmp_path / "d.json")


def test_a_shard_must_fit_into_memory_and_not_all_of_them_at_once(tmp_path, monkeypatch):
    for name in "abcdefgh":
        (tmp_path / f"{name}.json").write_bytes(shard())
    monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 5000)
    assert len(read(tmp_path).y) == 32
    monkeypatch.setattr("fco_cli.memory_limit.machine_memory", lambda: 1500)
    assert "a.json: reading it would take" in refusal(tmp_path)


# ---- TFF


class TestHdf5:
    """Files that name others, and files that are larger than they are."""

    @pytest.fixture
    def file(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "d.h5", "w") as file:
            for name in "ab":
                client = file.create_group(f"examples/{name}")
                client["pixels"] = np.ones((3, 2))
                client["label"] = np.arange(3)
            yield file

    def says(self, file) -> str:
        path = Path(file.filename)
        file.close()
        return refusal(path)

    def test_links_are_not_followed(self, file, tmp_path):
        import h5py

        for link in (h5py.ExternalLink("other.h5", "/"), h5py.SoftLink("/examples/b/pixels")):
            with h5py.File(tmp_path / "e.h5", "w") as other:
                file.copy("examples", other)
                del other["examples/a/pixels"]
                other["examples/a/pixels"] = link
                assert "/examples/a/pixels: is a link, which is not followed" in self.says(other)
        del file["examples"]
        file["examples"] = h5py.ExternalLink("other.h5", "/")
        assert "//examples: is a link, which is not followed" in self.says(file)

    def test_values_in_other_files_are_not_read(self, file):
        del file["examples/a/pixels"]
        file["examples/a"].create_dataset("pixels", (3, 2), "u1", external=[("/etc/passwd", 0, 6)])
        assert "/examples/a/pixels: its values lie in another file" in self.says(file)

    def test_values_of_other_datasets_are_not_read(self, file):
        import h5py

        del file["examples/a/pixels"]
        layout = h5py.VirtualLayout((3, 2), "f8")
        layout[:] = h5py.VirtualSource("other.h5", "pixels", (3, 2))
        file["examples/a"].create_virtual_dataset("pixels", layout)
        assert "/examples/a/pixels: its values lie in another file" in self.says(file)

    @pytest.mark.parametrize(
        ("shape", "says"),
        [((3, 10**9, 100), "would take 4.8 TB of memory; this machine has"), ((3, 10**7), "looks like a bomb")],
    )
    def test_a_bomb_is_refused(self, file, shape, says):
        del file["examples/a/pixels"]
        file["examples/a"].create_dataset("pixels", shape, "f8", chunks=True, compression="gzip")
        assert says in self.says(file)

    @pytest.mark.parametrize(
        ("values", "says"),
        [
            (np.ones((2, 2)), "pixels have shape (2, 2), label (3,)"),
            (1.0, "pixels have shape (), label (3,)"),
            (["a", "b", "c"], "must hold numbers, not object"),
        ],
    )
    def test_values_of_a_wrong_kind(self, file, values, says):
        del file["examples/a/pixels"]
        file["examples/a/pixels"] = values
        assert says in self.says(file)

    def test_a_group_in_the_place_of_values(self, file):
        del file["examples/a/pixels"]
        file["examples/a"].create_group("pixels")
        assert "/examples/a/pixels: is not a dataset" in self.says(file)

    def test_a_name_that_is_not_text(self, file):
        file.move("examples/a", b"examples/\xff")
        assert "client b'\\xff': its name is not text" in self.says(file)

    def test_what_is_not_there(self, file):
        del file["examples/b/label"]
        assert "/examples/b/label: is not there" in self.says(file)


def test_the_fingerprint_of_a_huge_array_that_lies_is_refused(tmp_path):
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "x.npy").write_bytes(npy_header("<f8", (10**12, 2)) + b"few")
    with pytest.raises(UserError, match=r"x.npy declares 16 TB but holds 3 bytes"):
        fingerprint(tmp_path)
