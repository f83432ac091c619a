"""Readers on small files in every format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fco_cli.data.readers import fingerprint, read
from fco_cli.data.readers.source import Columns
from fco_cli.errors import UserError


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "client": ["u", "v", "u", "v", "w", "w"],
            "height": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "weight": [10, 20, 30, 40, 50, 60],
            "y": ["no", "yes", "yes", "no", "no", "yes"],
            "split": ["train", "train", "test", "test", "train", "train"],
        }
    )


def error_message(source: Path, **options) -> str:
    with pytest.raises(UserError) as problem:
        read(source, **options)
    assert "\n" not in str(problem.value)
    return str(problem.value)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_single_table_with_a_client_column(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    frame().to_csv(path, index=False) if suffix == "csv" else frame().to_parquet(path)
    data = read(path)
    assert data.x.tolist() == frame()[["height", "weight"]].to_numpy().tolist()
    assert data.feature_names == ["height", "weight"]
    assert data.client.tolist() == frame()["client"].tolist()
    assert data.split.tolist() == frame()["split"].tolist()
    assert data.classes.tolist() == ["no", "yes"]
    assert data.y.tolist() == [0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_folder_with_a_table_per_client(tmp_path, suffix):
    for client, rows in frame().groupby("client"):
        path, rows = tmp_path / f"{client}.{suffix}", rows.drop(columns="client")
        rows.to_csv(path, index=False) if suffix == "csv" else rows.to_parquet(path)
    data = read(tmp_path)
    assert data.client.tolist() == ["u", "u", "v", "v", "w", "w"]
    assert data.x[:, 0].tolist() == [1, 3, 2, 4, 5, 6]
    assert data.y.tolist() == [0, 1, 1, 0, 0, 1]


def test_columns_can_be_renamed_and_dropped(tmp_path):
    table = frame().rename(columns={"y": "sick", "client": "hospital"}).assign(sick=[0, 1, 1, 0, 0, 1], note="text")
    table.to_csv(tmp_path / "t.csv", index=False)
    data = read(tmp_path / "t.csv", Columns(label="sick", client="hospital", drop=("note", "weight")))
    assert data.feature_names == ["height"]
    assert data.y.tolist() == [0, 1, 1, 0, 0, 1]
    assert data.classes is None


@pytest.mark.parametrize(
    ("column", "row", "value", "expected_message"),
    [
        ("height", 3, "tall", "client 'v', line 5: column 'height' is 'tall'; 5 of 6 rows have a number there"),
        ("y", 5, None, "client 'w', line 7: column 'y' is empty"),
        ("split", 1, "dev", "client 'v', row 1: split is 'dev'"),
    ],
)
def test_the_error_names_an_invalid_cell(tmp_path, column, row, value, expected_message):
    table = frame().astype(object)
    table.loc[row, column] = value
    table.to_csv(tmp_path / "t.csv", index=False)
    message = error_message(tmp_path / "t.csv")
    assert expected_message in message
    assert str(tmp_path / "t.csv") in message


def test_the_error_names_a_table_with_other_columns(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    assert "column 'sick' not found; columns are client, height" in error_message(
        tmp_path / "t.csv", columns=Columns("sick")
    )
    frame().drop(columns="weight").to_csv(tmp_path / "u.csv", index=False)
    assert "t.csv: has a column 'client', but a file in a folder holds one client" in error_message(tmp_path)
    other_columns = error_message(tmp_path, columns=Columns(drop=("client",)))
    assert "u.csv: its columns differ from those of t.csv: missing columns weight" in other_columns
    numbers = frame().assign(y=range(6))
    numbers.to_csv(tmp_path / "u.csv", index=False)
    labels = error_message(tmp_path, columns=Columns(drop=("client",)))
    assert "u.csv: labels must be all numbers or all texts; t.csv has the other type" in labels


def leaf(users: dict[str, list[list[float]]]) -> dict:
    data = {user: {"x": rows, "y": [k % 2 for k in range(len(rows))]} for user, rows in users.items()}
    return {"users": list(users), "num_samples": [len(rows) for rows in users.values()], "user_data": data}


def write_leaf(folder: Path) -> None:
    for part, shard, users in (
        ("train", "a", {"u": [[0.0, 1.0], [0.5, 1.0]], "v": [[1.0, 1.0]]}),
        ("train", "b", {"w": [[0.25, 0.5], [0.0, 0.0]]}),
        ("test", "a", {"v": [[0.75, 0.0]], "u": [[1.0, 0.0]]}),
    ):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / f"{shard}.json").write_text(json.dumps(leaf(users)))


def test_folders_of_leaf_shards_define_the_split(tmp_path):
    write_leaf(tmp_path)
    data = read(tmp_path)
    rows = sorted(zip(data.client.tolist(), data.split.tolist(), data.x.tolist(), data.y.tolist(), strict=True))
    assert rows == [
        ("u", "test", [1.0, 0.0], 0),
        ("u", "train", [0.0, 1.0], 0),
        ("u", "train", [0.5, 1.0], 1),
        ("v", "test", [0.75, 0.0], 0),
        ("v", "train", [1.0, 1.0], 0),
        ("w", "train", [0.0, 0.0], 1),
        ("w", "train", [0.25, 0.5], 0),
    ]


def test_the_error_names_an_invalid_leaf_shard(tmp_path):
    write_leaf(tmp_path)
    shard = tmp_path / "train" / "b.json"
    content = shard.read_text()
    shard.write_text(content[: len(content) // 2])
    assert f"{shard}: is not valid JSON" in error_message(tmp_path)
    shard.write_text(json.dumps({"users": []}))
    assert f"{shard}: is not a LEAF shard" in error_message(tmp_path)
    shard.write_text(json.dumps(leaf({"w": [[0.25, float("nan")], [0.0, 0.0]]})))
    assert f"{shard}: client 'w', row 0: every feature must be finite" in error_message(tmp_path)
    shard.write_text(json.dumps(leaf({"w": [[0.25], [0.0, 0.0]]})))
    assert f"{shard}: client 'w'" in error_message(tmp_path)
    shard.write_text(json.dumps(leaf({"w": [[0.25], [0.0]]})))
    assert "b.json: its samples have 1 features, those of a.json have 2" in error_message(tmp_path)
    shard.write_text(json.dumps(leaf({"w": [[0.25, 1], [0.0, 1]]}) | {"num_samples": [3]}))
    assert "num_samples is 3" in error_message(tmp_path)
    shard.write_text(json.dumps(leaf({"w": [[0.25, 1], [0.0, 1]]}) | {"num_samples": [2, 2]}))
    assert "has 1 users but 2 num_samples" in error_message(tmp_path)
    (tmp_path / "alone.json").write_text(json.dumps(leaf({})))
    assert "holds no users" in error_message(tmp_path / "alone.json")


def write_tff(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for part, rows in (("train", 4), ("test", 2)):
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for m, writer in enumerate(["f1", "f0", "f2"]):
                group = file.create_group(f"examples/{writer}")
                group["pixels"] = np.full((rows, 28, 28), m, np.float32)
                group["label"] = np.arange(rows, dtype=np.int32)


def test_tff_files_have_images_by_writer(tmp_path):
    write_tff(tmp_path)
    data = read(tmp_path)
    assert data.x.shape == (18, 784)
    assert data.clients.tolist() == ["f0", "f1", "f2"]
    assert (data.x[data.client == "f2"] == 2).all()
    assert (data.split == "test").sum() == 6


def test_only_selected_writers_are_read_from_tff_files(tmp_path):
    write_tff(tmp_path)
    data = read(tmp_path, choose=lambda writers: [writers[0], writers[2]])
    assert data.clients.tolist() == ["f0", "f2"]
    assert len(data.y) == 12


def test_the_error_names_a_damaged_tff_file(tmp_path):
    write_tff(tmp_path)
    (tmp_path / "fed_emnist_test.h5").write_bytes(b"damaged")
    assert "fed_emnist_test.h5: is not one of TensorFlow Federated's files" in error_message(tmp_path)


def test_a_folder_must_have_files_of_one_format(tmp_path):
    assert "holds no known format" in error_message(tmp_path)
    frame().to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "a.json").write_text("{}")
    assert "holds .json and .csv; must hold files of one format" in error_message(tmp_path)
    assert "no such file or folder" in error_message(tmp_path / "nowhere")
    (tmp_path / "sub").mkdir()
    np.savez(tmp_path / "sub" / "d.npz", x=np.zeros(2))
    assert "is a folder; give the .npz file in it" in error_message(tmp_path / "sub")


def test_a_fingerprint_depends_on_the_content_and_not_on_the_path(tmp_path):
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path in paths:
        frame().assign(weight=range(6) if path.name == "c.csv" else 1).to_csv(path, index=False)
    a, b, c = paths
    assert fingerprint(a) == fingerprint(b) != fingerprint(c)
    before = fingerprint(a)
    frame().to_csv(a, index=False)
    assert fingerprint(a) != before


def test_a_fingerprint_depends_on_the_names_of_files_that_are_read(tmp_path):
    write_leaf(tmp_path / "one")
    write_leaf(tmp_path / "two")
    before = fingerprint(tmp_path / "one")
    assert before == fingerprint(tmp_path / "two")
    (tmp_path / "one/test/a.json").rename(tmp_path / "one/train/c.json")
    assert fingerprint(tmp_path / "one") != before
    (tmp_path / "two/readme.txt").write_text("is not read")
    (tmp_path / "two/all_data").mkdir()
    (tmp_path / "two/all_data/all.json").write_text("is not read")
    assert fingerprint(tmp_path / "two") == before


@pytest.mark.parametrize(("name", "writers", "rows"), [("femnist10", 285, 32487), ("femnist62", 291, 45873)])
def test_the_real_subsets(real_data, name, writers, rows):
    data = read(real_data(f"{name}_leaf_subset.npz"))
    assert len(data.clients) == writers
    assert data.x.shape == (rows, 784)
    assert int(data.y.max()) + 1 == int(name.removeprefix("femnist"))


def arrays_in(folder: Path, **changed) -> Path:
    arrays = {"x": np.arange(8.0).reshape(4, 2), "y": np.zeros(4), "client": np.array(["a", "a", "b", "b"])} | changed
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_a_folder_of_arrays_is_memory_mapped(tmp_path):
    data = read(arrays_in(tmp_path / "big"))
    clients = data.take(np.ones(4, dtype=bool)).as_clients("float64")
    assert isinstance(data.x, np.memmap)
    assert np.shares_memory(clients.x, data.x)
    assert clients.offsets.tolist() == [0, 2, 4]


def test_invalid_folders_of_arrays(tmp_path):
    objects = arrays_in(tmp_path / "objects", client=np.array(["a", "a", "b", None], dtype=object))
    assert "client.npy holds Python objects (a pickle)" in error_message(objects)
    assert "'x' has shape (4,)" in error_message(arrays_in(tmp_path / "flat", x=np.zeros(4)))
    assert "give the folder with x.npy" in error_message(objects / "x.npy")
    (objects / "y.npy").unlink()
    (objects / "client.npy").write_bytes(b"\x93NUMPY")
    assert "client.npy: is not an .npy file that can be read" in error_message(objects)
