"""The fMRI task on generated data in the layout of nilearn and, if present, on a real subject."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import nibabel
import numpy as np
import pytest
from nilearn.maskers import NiftiMasker

from fco_cli import config
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.commands import run as command
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks import haxby
from fco_cli.tasks.fmri import Fmri, classification, save_image, to_image

REPOSITORY = Path(__file__).parents[2]
RUN = ["rest"] * 4 + ["face"] * 9 + ["cat"] * 3 + ["house"] * 9 + ["rest"] * 2
SHAPE = (5, 6, 4)
PSI = L1(strength=1e-3)


@dataclass
class Tree:
    """Data folder of nilearn with three small subjects; run 1 of subject 2 has no labels, subject 6 no anatomy."""

    root: Path
    mask: np.ndarray
    scans: dict[int, np.ndarray]  # [x, y, z, volumes]
    labels: dict[int, list[tuple[str, int]]]

    def file(self, subject: int, name: str) -> Path:
        return self.root / "haxby2001" / f"subj{subject}" / name

    @property
    def mask_file(self) -> Path:
        return self.root / "haxby2001" / "mask.nii.gz"

    def write_labels(self, subject: int, rows: list[tuple[str, int]]) -> None:
        text = "".join(f"{label} {run}\n" for label, run in rows)
        self.file(subject, "labels.txt").write_text("labels chunks\n" + text)

    def task(self, **changes: object) -> Fmri:
        hparams = {"data_dir": str(self.root), "train_subjects": [1, 2], "validation_subjects": [6]}
        return Fmri(name="fmri", strength=1e-3, radius=1.0, **(hparams | changes))

    def build(self, dtype: str = "float32") -> Problem:
        return self.task().build(0, dtype).to_problem(PSI)


def write_image(path: Path, data: np.ndarray) -> None:
    nibabel.save(nibabel.Nifti1Image(data, np.diag([3.5, 3.75, 3.75, 1.0])), path)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(haxby, "fmri_cache", lambda: tmp_path / "cache")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):  # prevents downloads
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    random = np.random.default_rng(0)
    made = Tree(tmp_path / "nilearn", random.random(SHAPE) < 0.5, {}, {})
    made.file(1, "x").parent.parent.mkdir(parents=True)
    (made.root / "haxby2001" / "MD5SUMS").write_text("")
    write_image(made.mask_file, made.mask.astype(np.uint8))
    for subject in (1, 2, 6):
        made.file(subject, "x").parent.mkdir()
        silent = 1 if subject == 2 else None
        rows = [("rest" if run == silent else label, run) for run in range(3) for label in RUN]
        made.write_labels(subject, rows)
        drift = 300 + 100 * subject + np.repeat([0, 50, -70], len(RUN))  # runs and subjects at different levels
        made.scans[subject] = (drift + 20 * random.standard_normal((*SHAPE, len(rows)))).astype(np.int16)
        made.labels[subject] = rows
        write_image(made.file(subject, "bold.nii.gz"), made.scans[subject])
        for name in ("mask4_vt", "mask8b_face_vt", "mask8b_house_vt", "mask8_face_vt", "mask8_house_vt", "anat"):
            if (subject, name) != (6, "anat"):
                shutil.copy(made.mask_file, made.file(subject, f"{name}.nii.gz"))
    return made


def manual_download(tree: Tree, subject: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Compute x and y of the sessions of a subject independently."""
    voxels = tree.scans[subject][tree.mask].T.astype(float)  # [volumes, voxels]
    labels, runs = (np.array(column) for column in zip(*tree.labels[subject], strict=True))
    sessions = []
    for run in range(3):
        one = voxels[runs == run]
        z = (one - one.mean(axis=0)) / one.std(axis=0, ddof=1)
        seen = np.isin(labels[runs == run], ["face", "house"])
        if seen.any():
            sessions.append((z[seen], labels[runs == run][seen] == "face"))
    return sessions


def test_sessions_are_clients_with_nine_faces_and_nine_houses(tree: Tree) -> None:
    problem = tree.build()
    assert problem.data.clients == 3 + 2  # run 1 of subject 2 has neither face nor house
    assert problem.held_out.clients == 3
    assert problem.data.x.shape == (5 * 18, tree.mask.sum())
    assert problem.data.x.dtype == np.float32
    for data in (problem.data, problem.held_out):
        assert (data.sizes == 18).all()
        assert (np.add.reduceat(data.y, data.offsets[:-1]) == 9).all()


def test_scans_are_z_scored_by_run_and_subjects_do_not_mix(tree: Tree) -> None:
    problem = tree.build()
    for data, subjects in ((problem.data, (1, 2)), (problem.held_out, (6,))):
        expected = [session for subject in subjects for session in manual_download(tree, subject)]
        np.testing.assert_allclose(data.x, np.concatenate([x for x, _ in expected]), atol=2e-5)
        np.testing.assert_array_equal(data.y, np.concatenate([y for _, y in expected]))


def test_training_data_do_not_depend_on_the_validation_subject(tree: Tree) -> None:
    before = tree.build().data.x.copy()
    write_image(tree.file(6, "bold.nii.gz"), tree.scans[6][..., ::-1])
    after = tree.build()
    np.testing.assert_array_equal(after.data.x, before)
    held_out = manual_download(tree, 6)
    assert not np.allclose(after.held_out.x, np.concatenate([x for x, _ in held_out]), atol=1e-2)


def test_a_subject_cannot_train_and_validate(tree: Tree) -> None:
    with pytest.raises(UserError, match=r"task.validation_subjects: got \[2, 6\].*\[2\] are training subjects"):
        tree.task(validation_subjects=[2, 6])


@pytest.mark.parametrize("subjects", [[], [1, 1], [0], [7]])
def test_subjects_are_checked(tree: Tree, subjects: list[int]) -> None:
    with pytest.raises(UserError, match=r"task.train_subjects: got .* from 1 to 6"):
        tree.task(train_subjects=subjects)


def test_the_order_of_the_subjects_is_the_users(tree: Tree) -> None:
    """Subject 6 has one file fewer, which must not shift the files of the others."""
    problem = tree.task(train_subjects=[6, 1], validation_subjects=[2]).build(0, "float32").to_problem(PSI)
    expected = [x for subject in (6, 1) for x, _ in manual_download(tree, subject)]
    np.testing.assert_allclose(problem.data.x, np.concatenate(expected), atol=2e-5)
    np.testing.assert_allclose(problem.held_out.x, np.concatenate([x for x, _ in manual_download(tree, 2)]), atol=2e-5)


# Cache


def prepared_folders(tmp_path: Path) -> list[Path]:
    """Return all cache entries except the lock."""
    return [path for path in (tmp_path / "cache").iterdir() if path.name != ".lock"]


def test_of_two_processes_that_need_the_same_scans_one_prepares_them(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are used instead of processes; each opens the lock file separately."""
    calls, real = [], haxby.z_scores
    monkeypatch.setattr(haxby, "z_scores", lambda *given: calls.append(given) or real(*given))
    with ThreadPoolExecutor(4) as pool:
        problems = list(pool.map(lambda _: tree.build(), range(4)))
    assert len(calls) == 3  # subjects, once each
    for problem in problems[1:]:
        np.testing.assert_array_equal(problem.data.x, problems[0].data.x)


def test_scans_are_prepared_once_and_read_in_place(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tree.build().data.x.copy()
    monkeypatch.setattr(haxby, "z_scores", lambda *_: pytest.fail("prepared again"))
    again = tree.build()
    np.testing.assert_array_equal(again.data.x, first)
    prepared = haxby.prepare(str(tree.root), [1, 2, 6])
    assert isinstance(prepared.x, np.memmap)
    assert np.shares_memory(prepared.of([1, 2], "float32").x, prepared.x)
    assert type(prepared.of([1, 2], "float32").x) is np.ndarray
    assert tree.build("float64").data.x.dtype == np.float64


def test_nothing_half_done_stays_in_the_cache(tree: Tree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(haxby, "z_scores", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tree.build()
    assert prepared_folders(tmp_path) == []


@pytest.mark.parametrize("name", ["x.npy", "prepared.json", "mask.nii.gz"])
def test_a_damaged_cache_is_prepared_again(tree: Tree, tmp_path: Path, name: str) -> None:
    expected = tree.build().data.x.copy()
    (folder,) = prepared_folders(tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes()[:-20])
    np.testing.assert_array_equal(tree.build().data.x, expected)
    assert prepared_folders(tmp_path) == [folder]


def test_a_cache_that_cannot_be_written_is_named(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(UserError, match=r"/cache: cannot be written"):
        tree.build()


# Invalid files


def test_corrupt_scans(tree: Tree) -> None:
    tree.file(2, "bold.nii.gz").write_bytes(b"no image at all")
    with pytest.raises(UserError, match=r"subj2/bold.nii.gz: is not a NIfTI image that can be read"):
        tree.build()


def test_truncated_scans(tree: Tree) -> None:
    path = tree.file(1, "bold.nii.gz")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"subj1/bold.nii.gz: is not a NIfTI image that can be read"):
        tree.build()


def test_labels_that_do_not_match_the_volumes(tree: Tree) -> None:
    tree.write_labels(1, tree.labels[1][:-1])
    with pytest.raises(UserError, match=r"subj1/labels.txt: has 80 rows, but .*bold.nii.gz has shape \(5, 6, 4, 81\)"):
        tree.build()


def test_labels_of_another_form(tree: Tree) -> None:
    tree.file(1, "labels.txt").write_text("face\nhouse\n")
    with pytest.raises(UserError, match=r"subj1/labels.txt: is not a table with the columns 'labels' and 'chunks'"):
        tree.build()


def test_a_mask_of_another_shape(tree: Tree) -> None:
    write_image(tree.mask_file, np.ones((5, 6, 5), np.uint8))
    with pytest.raises(UserError, match=r"haxby2001/mask.nii.gz: shape \(5, 6, 5\) differs from that of the scans"):
        tree.build()


def test_an_empty_mask(tree: Tree) -> None:
    write_image(tree.mask_file, np.zeros(SHAPE, np.uint8))
    with pytest.raises(UserError, match=r"haxby2001/mask.nii.gz: has no voxels"):
        tree.build()


def test_a_subject_without_face_and_house_scans(tree: Tree) -> None:
    tree.write_labels(6, [("rest", run) for _, run in tree.labels[6]])
    with pytest.raises(UserError, match=r"subj6/labels.txt: subject 6 has no face or house scan"):
        tree.build()


def test_voxels_that_are_not_finite(tree: Tree) -> None:
    scans = tree.scans[1].astype(np.float32)
    scans[tree.mask, 7] = np.nan
    write_image(tree.file(1, "bold.nii.gz"), scans)
    with pytest.raises(UserError, match=r"subj1/bold.nii.gz: some voxels are not finite"):
        tree.build()


def test_a_failed_download_gives_instructions(tree: Tree) -> None:
    shutil.rmtree(tree.file(2, "x").parent)
    with pytest.raises(UserError) as caught:
        tree.build()
    message = str(caught.value)
    assert "\n" not in message
    for part in ("subject 2", str(tree.root), "subj2-2010.01.14.tar.gz", "data.pymvpa.org", "300 MB", "task=fmri_sim"):
        assert part in message


# Command line and images


def test_the_command_prints_one_line_and_exits_with_2(here: Callable[..., Any], tmp_path: Path) -> None:
    _, line = here("task=fmri", f"task.data_dir={tmp_path}/nothing", cwd=tmp_path, code=2).err.splitlines()
    assert line.startswith("fco-run: task.data_dir: the Haxby 2001 data of subject 1")


def run_in_process(*overrides: str) -> None:
    """Run fco-run in this process, with the cache of the test."""
    config.register()
    with hydra.initialize_config_module("fco_cli.conf", version_base="1.3"):
        command.run(hydra.compose("config", overrides=["task=fmri", *overrides]))


@pytest.mark.parametrize("algorithm", ["feddualavg", "local"])
def test_a_run_leaves_the_weights_as_an_image(tree: Tree, tmp_path: Path, algorithm: str) -> None:
    run_in_process(
        f"task.data_dir={tree.root}", "task.train_subjects=[1,2]", f"algo={algorithm}", f"output_dir={tmp_path}",
        "hparams.rounds=2", "hparams.clients_per_round=4", "hparams.client_lr=0.01",
    )  # fmt: skip
    (record,) = (tmp_path / "fmri" / algorithm).iterdir()
    with np.load(record / "model.npz") as model:
        weights = model["weights"]  # [voxels], or [clients, voxels] for the local baseline
    assert np.abs(weights).max() > 0
    image = nibabel.load(record / "weights.nii.gz")
    np.testing.assert_array_equal(np.asarray(image.dataobj)[tree.mask], weights.T)
    assert (np.asarray(image.dataobj)[~tree.mask] == 0).all()
    np.testing.assert_array_equal(image.affine, nibabel.load(tree.mask_file).affine)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("volumes", [(), (3,)])
def test_weights_to_image_and_back_is_exact(tree: Tree, tmp_path: Path, dtype: str, volumes: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    weights = (10.0 ** random.integers(-30, 5, (*volumes, tree.mask.sum())) * random.standard_normal()).astype(dtype)
    mask = nibabel.load(tree.mask_file)
    save_image(to_image(weights, mask), tmp_path / "weights.nii.gz")
    back = NiftiMasker(mask, standardize=None).fit_transform(str(tmp_path / "weights.nii.gz"))
    assert back.dtype == weights.dtype
    np.testing.assert_array_equal(back.reshape(weights.shape), weights)


# Real data


def test_the_real_subject_through_nilearn(real_data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haxby, "fmri_cache", lambda: tmp_path)
    prepared = haxby.prepare(str(real_data("haxby_nilearn_slice")), [1])
    data = prepared.of([1], "float32")
    assert data.clients == 12
    assert data.x.shape == (12 * 18, 530)
    assert (np.add.reduceat(data.y, data.offsets[:-1]) == 9).all()
    assert int(np.asarray(prepared.mask.dataobj).sum()) == 530
    assert np.abs(data.x).max() < 11  # z-scores of 121 volumes cannot exceed 120 / sqrt(121)


@pytest.mark.slow
@pytest.mark.machine_code
def test_on_real_scans_feddualavg_is_accurate_and_sparser_than_fedmid(real_data) -> None:
    """Learning rates are selected by the lowest validation objective at the last round, as in the paper."""
    with np.load(real_data("haxby_subj1_face_house.npz"), allow_pickle=False) as arrays:
        x, y, split = arrays["x"], arrays["y"].astype(np.float32), arrays["split"]

    def sessions(part: str) -> ClientData:
        rows = split == part
        return ClientData.of_equal_clients(x[rows].reshape(-1, 18, x.shape[1]), y[rows].reshape(-1, 18))

    problem = classification(sessions("train"), sessions("val")).to_problem(PSI)
    assert (problem.data.clients, problem.held_out.clients) == (10, 2)
    rates = np.array([(client, server) for client in (0.01, 0.1, 1) for server in (0.1, 1, 10)])
    best = {}
    for name in ("feddualavg", "fedmid"):
        algorithm = all_algorithms()[name]()
        varying = Varying.from_rates(algorithm, PSI, *rates.T.copy())
        hparams = Hparams(0.01, 1.0, 100, 10, 1, 1, eval_every=100, dtype="float32")
        task = Fmri(
            name="fmri", strength=1e-3, radius=1.0, data_dir=None, train_subjects=[1], validation_subjects=[2]
        )  # only its metrics are used
        jobs = [Job() for _ in rates]
        simulation = Simulation(Setup(task, problem, hparams, 0, algorithm), jobs, varying)
        while simulation.advance():
            pass
        final = [{key: values[-1] for key, values in job.history.items()} for job in jobs if job.diverged is None]
        best[name] = min(final, key=lambda metrics: metrics["validation_objective"])
    ours, theirs = best["feddualavg"], best["fedmid"]
    assert ours["validation_accuracy"] >= 0.9
    assert ours["validation_accuracy"] >= theirs["validation_accuracy"]
    assert ours["density"] < min(0.25, theirs["density"])
