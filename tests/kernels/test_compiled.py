from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from fco_cli.files import lock
from fco_cli.kernels.cache import enable_cache, kernel_folder
from fco_cli.kernels.compiled import Namespace, is_finite, kernel, specialize
from fco_cli.kernels.library import KERNEL

pytestmark = pytest.mark.machine_code


def inner(v):
    raise NotImplementedError


@kernel
def double(v):
    return 2.0 * v


@kernel
def square(v):
    return v * v


@kernel
def total(values):
    """Return the sum of inner(v), with `inner` bound by `specialize`."""
    result = 0.0
    for i in range(values.shape[0]):
        result += inner(values[i])
    return result


VALUES = np.array([1.0, 2.0, 3.0])


def test_specialize_binds_the_names():
    assert specialize(total, inner=double)(VALUES) == 12
    assert specialize(total, inner=square)(VALUES) == 14


def test_a_bound_float_is_a_compile_time_constant():
    @kernel
    def times(v):
        return factor * v  # noqa: F821 - bound below

    twice, thrice = (specialize(times, factor=number) for number in (2.0, 3.0))
    assert (twice(1.5), thrice(1.5)) == (3, 4.5)
    assert (twice.is_compilable, twice.identity != thrice.identity) == (True, True)


def test_the_same_parts_give_the_same_kernel():
    assert specialize(total, inner=double) is specialize(total, inner=double)
    assert specialize(total, inner=double) is not specialize(total, inner=double, parallel=True)


def test_specializations_have_different_identities(monkeypatch):
    """The identity is the cache key: it depends on parts at any depth and, with several threads, on `parallel`."""
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 2)

    @kernel
    def outer(values):
        return part(values)  # noqa: F821 - bound below

    kernels = [
        specialize(outer, part=specialize(total, inner=double)),
        specialize(outer, part=specialize(total, inner=square)),
        specialize(total, inner=double),
        specialize(total, inner=double, parallel=True),
    ]
    assert len({k.identity for k in kernels}) == 4
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 1)
    assert len({k.identity for k in kernels}) == 3


def test_a_kernel_with_a_python_part_runs_as_python_with_the_same_result():
    calls = []

    def spying_square(v):
        calls.append(v)
        return v * v

    spied = specialize(total, inner=spying_square)
    assert not spied.is_compilable
    assert specialize(total, inner=square).is_compilable
    assert spied(VALUES) == specialize(total, inner=square)(VALUES) == 14
    assert calls == [1, 2, 3]


@pytest.mark.ci
@pytest.mark.parametrize("name", ["feddualavg", "fedavg_subgrad"])
def test_an_algorithm_as_python_agrees_with_its_machine_code(
    make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, name
):
    """The results agree up to the order of sums."""
    problem = make_problem(regularizer("l1"))
    (cohort,) = cohorts_of(problem, make_hparams(clients_per_round=3), 1)
    start = np.random.default_rng(0).standard_normal((1, problem.layout.size))

    def one_round(algorithm):
        state = algorithm.initial_state(start.copy())
        return algorithm.output(algorithm.round(state, cohort).state)

    compiled, plain = make_algorithm(name, problem), make_algorithm(name, problem)

    def descend(*arguments):  # ordinary functions, as a user may define
        return problem.descend(*arguments)

    def descend_dual(*arguments):
        return problem.descend_dual(with_psi=True)(*arguments)

    parts = plain.operations.parts
    own = {"gradient_step": descend, "dual_gradient_step": descend_dual}
    plain.__dict__["operations"] = Namespace("ops", {**parts, **own})
    assert compiled._run_clients.is_compilable
    assert not plain._run_clients.is_compilable
    np.testing.assert_allclose(one_round(plain), one_round(compiled), rtol=1e-13, atol=1e-14)


@kernel
def finite_sum(values):
    check = 0.0
    for i in range(values.shape[0]):
        check += values[i]
    return is_finite(check)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 33])
def test_is_finite_survives_reassociation(count):
    values = np.ones(count)
    assert finite_sum(values)
    for bad in (np.nan, np.inf, -np.inf):
        values[-1] = bad
        assert not finite_sum(values)
        assert not is_finite(bad)


SCRIPT = """
import hashlib, numpy as np
from fco_cli.kernels.compiled import specialize
from fco_cli.problem.mirror import to_primal, Geometry
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.problem.regularizers.sets import L1Ball
digest = hashlib.sha256()
for psi in (L1(strength=0.3), L1Ball(radius=2.0)):
    z = np.random.default_rng(0).standard_normal((3, 56))
    out = np.empty_like(z)
    geometry = Geometry(np.repeat(psi.numbers, 3), Euclidean().numbers, np.array([[0, 56, 7, 8, 1, 0]]), np.ones(56))
    specialize(to_primal, on_block={"primal": Euclidean().primal(psi)})(z, np.ones(3), geometry, out)
    digest.update(out.tobytes())
print(digest.hexdigest())
"""


def run_script(home):
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_machine_code_from_the_cache_gives_the_bits_of_fresh_code(tmp_path):
    """This includes parts that another process has compiled and cached before."""
    fresh = run_script(tmp_path)
    cached = sorted((tmp_path / "fco" / "kernels").rglob("*.kernel"))
    assert len(cached) == 2  # two specializations of one kernel
    before = [path.stat().st_mtime_ns for path in cached]
    assert run_script(tmp_path) == fresh
    assert [path.stat().st_mtime_ns for path in cached] == before


FINITE = "from fco_cli.kernels.compiled import Namespace, is_finite; print(is_finite(1.0))"


def is_finite_in(home, **changes):
    """Return the stderr of a process that runs a kernel with this cache folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), **changes}
    done = subprocess.run([sys.executable, "-c", FINITE], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    return done.stderr


def kernel_files(home):
    return {path: path.stat().st_mtime_ns for path in home.rglob("*.kernel")}


SLOW = """
import sys, time
from pathlib import Path
from fco_cli.kernels import cache
from fco_cli.kernels.compiled import is_finite
save = cache.KernelCache.save_overload
def save_slowly(*arguments):
    print("compiled")
    time.sleep(0.5)
    save(*arguments)
cache.KernelCache.save_overload = save_slowly
folder, own = Path(sys.argv[1]), Path(sys.argv[1]) / sys.argv[2]
own.write_text("")
while len(list(folder.glob("process*"))) < 2:
    time.sleep(0.01)
assert is_finite(1.0)
"""


def test_two_processes_compile_a_kernel_once(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SLOW, str(tmp_path), name], env=environment, stdout=subprocess.PIPE, text=True
        )
        for name in ("process0", "process1")
    ]
    assert sorted(process.communicate(timeout=120)[0] for process in processes) == ["", "compiled\n"]
    assert [process.returncode for process in processes] == [0, 0]
    assert list((tmp_path / "fco" / "kernels").glob("*.lock")) == []


def test_a_stopped_compilation_is_waited_for_a_limited_time(tmp_path, monkeypatch):
    call_as_new_process(tmp_path)
    (path,) = kernel_files(tmp_path)
    path.unlink()
    monkeypatch.setattr("fco_cli.kernels.cache.MAX_WAIT", 0.1)
    with lock(path.with_suffix(".lock"), wait=False) as is_locked:
        assert is_locked
        call_as_new_process(tmp_path)
    assert list(kernel_files(tmp_path)) == [path]


def test_kernels_run_without_a_writable_home(tmp_path):
    """Not even root can create a folder below a regular file; the temporary folder also stays empty."""
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    assert is_finite_in(tmp_path / "file", TMPDIR=str(tmp_path / "temporary")) == ""
    assert list((tmp_path / "temporary").iterdir()) == []


def call_as_new_process(folder):
    """Compile or load the kernel as a new process does."""
    compiled = double._compile(KERNEL)
    enable_cache(compiled, folder)
    assert compiled(2.0) == 4.0


@pytest.mark.parametrize("damage", ["empty", "half", "zeros", "a block of zeros", "one bit", "gone"])
def test_a_damaged_file_is_replaced(tmp_path, damage):
    """A power failure leaves such files; a block of zeros or a changed bit would run as machine code."""
    call_as_new_process(tmp_path)
    original = kernel_files(tmp_path)
    call_as_new_process(tmp_path)
    assert kernel_files(tmp_path) == original  # not rewritten
    (path,) = original
    content = path.read_bytes()
    middle = len(content) // 2
    damaged = {
        "empty": b"",
        "half": content[:middle],
        "zeros": bytes(len(content)),
        "a block of zeros": content[:middle] + bytes(50) + content[middle + 50 :],
        "one bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
    }
    path.unlink() if damage == "gone" else path.write_bytes(damaged[damage])
    call_as_new_process(tmp_path)
    replaced = kernel_files(tmp_path)
    assert replaced.keys() == original.keys()
    assert replaced[path] != original[path]
    call_as_new_process(tmp_path)
    assert kernel_files(tmp_path) == replaced


def test_kernels_run_with_a_full_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fco_cli.files.write_all", full)
    call_as_new_process(tmp_path)
    assert kernel_files(tmp_path) == {}
    call_as_new_process(tmp_path / "gone")  # the folder does not exist
    (tmp_path / "file").write_text("")
    call_as_new_process(tmp_path / "file" / "below")


only_root = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give folders to another user"
)
NOBODY = 65534


@only_root
def test_a_folder_of_another_user_is_never_read(tmp_path):
    """Cached files are pickles, and loading a pickle executes code: here it creates the file `proof`."""
    home, proof = tmp_path / "home", tmp_path / "executed"

    def plant():
        for path in kernel_files(home):
            malicious = f"cos\nsystem\n(S'touch {proof}'\ntR.".encode()
            path.write_bytes(malicious + hashlib.sha256(malicious).digest())

    is_finite_in(home)
    plant()
    subprocess.run([sys.executable, "-c", FINITE], env={**os.environ, "XDG_CACHE_HOME": str(home)}, capture_output=True)
    assert proof.exists()  # the attack works in a folder of our own, to which only we can write
    proof.unlink()
    plant()
    os.chown(home / "fco" / "kernels", NOBODY, NOBODY)
    stderr = is_finite_in(home)
    assert not proof.exists()
    assert stderr.count("\n") == 1
    assert "kernels are compiled at every start: " in stderr


def to_nobody(folder):
    os.chown(folder, NOBODY, NOBODY)


def to_all(folder):
    folder.chmod(0o777)


def to_a_group(folder):
    os.chown(folder, os.getuid(), NOBODY)
    folder.chmod(0o770)


def behind_a_link(folder):
    target = folder.with_name("target")
    folder.rename(target)
    os.chown(target, NOBODY, NOBODY)
    folder.symlink_to(target)


@only_root
@pytest.mark.parametrize("place", ["fco/kernels", "fco", ""])
@pytest.mark.parametrize("give", [to_nobody, to_all, to_a_group, behind_a_link])
def test_a_folder_that_others_can_write_to_is_rejected(tmp_path, monkeypatch, caplog, give, place):
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert kernel_folder() == home / "fco" / "kernels"
    give(home / place)
    assert kernel_folder() is None
    assert "kernels are compiled at every start" in caplog.text


def test_a_private_folder_is_used(tmp_path, monkeypatch, caplog):
    """It may be behind our own symbolic link (on clusters ~/.cache is often on another disk) or below /tmp."""
    tmp_path.chmod(0o1777)
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    old_mask = os.umask(0)
    try:
        folder = kernel_folder()
    finally:
        os.umask(old_mask)
    assert folder == tmp_path / "disk" / "fco" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert caplog.text == ""
