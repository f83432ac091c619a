from __future__ import annotations

import re

import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.errors import UserError

SMALL = ["task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15", "hparams.clients_per_round=3"]
TIMED = "time_model=lognormal"


@pytest.fixture(scope="module")
def run_of():
    register()

    def of(*overrides):
        with initialize_config_module("fco_cli.conf", version_base="1.3"):
            return Run.of(compose("config", overrides=[*SMALL, *overrides]))

    return of


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "trace.csv").write_text("client,rounds\n0,1-3\n5,2\n")
    return tmp_path / "trace.csv"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["aggregation=buffered"], "time_model: got 'none', must be lognormal or file: the clients' times decide"),
        (["aggregation.deadline=1"], "time_model: got 'none', must be lognormal or file: the clients' times decide"),
        (
            [TIMED, "aggregation=buffered", "algo=zhj"],
            "aggregation: got 'buffered', must be synchronous: zhj cannot add",
        ),
        ([TIMED, "aggregation=buffered", "transform=topk"], "feddualavg cannot add messages from earlier states"),
        ([TIMED, "aggregation=buffered", "algo=mc_fedda"], "mc_fedda cannot add messages from earlier states"),
        (
            [TIMED, "aggregation=buffered", "participation=cyclic"],
            "participation: got 'cyclic', must be uniform or dropout",
        ),
        ([TIMED, "aggregation=buffered", "record_clients=true"], "record_clients: got True, must be false"),
        (
            [TIMED, "aggregation=buffered", "participation=dropout", "participation.reweight=true"],
            "participation.reweight: got True, must be false with aggregation=buffered",
        ),
        (
            ["algo=zhj", "participation=dropout", "participation.reweight=true"],
            "must be false with algo=zhj, whose server",
        ),
        (
            ["algo=scaffnew", "regularizer=l1", "hparams.clients_per_round=all", "participation=dropout"],
            "participation: got 'dropout', must be uniform: scaffnew requires full participation",
        ),
        (
            ["algo=scaffnew", "hparams.clients_per_round=all", TIMED, "aggregation.deadline=1"],
            "aggregation.deadline: got 1.0, must be null: scaffnew requires full participation",
        ),
        (["transform=clip_noise", "participation=cyclic"], "must be uniform: the privacy loss of transform=clip_noise"),
        (["participation=cyclic", "participation.groups=7"], "participation.groups: got 7, must be at most 6"),
        (["participation=trace"], "participation.path: got '', must be a CSV file"),
        (
            [TIMED, "aggregation=buffered", "aggregation.buffer=0"],
            "aggregation.buffer: got 0, must be a whole number >= 1",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unsupported_combinations_are_one_line(run_of, overrides, reason):
    with pytest.raises(UserError, match=re.escape(reason)) as refused:
        run_of(*overrides)
    assert "\n" not in str(refused.value)


def test_methods_with_client_memory_accept_dropouts(run_of):
    for algo in ("zhj", "feddualavg_cv", "scaffold_prox", "fedsplit", "fedadmm"):
        assert not run_of(f"algo={algo}", "participation=dropout").network.is_plain


@pytest.mark.parametrize(
    "overrides",
    [
        ["participation=dropout"],
        ["participation=cyclic"],
        [TIMED],
        [TIMED, "aggregation.deadline=1"],
        [TIMED, "aggregation=buffered"],
    ],
)
def test_the_network_is_part_of_the_stack_and_the_run(run_of, overrides):
    plain, other = run_of().identity, run_of(*overrides).identity
    assert {name for name in ("data", "problem", "family") if getattr(plain, name) != getattr(other, name)} == set()
    assert plain.stack != other.stack
    assert plain.run != other.run


def test_defaults_and_pooled_methods_have_the_identity_without_a_network(run_of):
    explicit = ["participation=uniform", "time_model=none", "aggregation=synchronous"]
    assert run_of(*explicit).identity == run_of().identity
    assert run_of("algo=optimum", "participation=dropout").identity == run_of("algo=optimum").identity


def test_the_content_of_a_trace_counts_and_its_name_does_not(run_of, trace):
    def run_id(path):
        return run_of("participation=trace", f"participation.path={path}").run_id

    first = run_id(trace)
    copy = trace.with_name("copy.csv")
    copy.write_bytes(trace.read_bytes())
    assert run_id(copy) == first
    copy.write_text("client,rounds\n0,1-4\n")
    assert run_id(copy) != first


def test_jobs_with_different_message_sizes_share_a_stack_unless_times_decide(run_of):
    def stacks(*overrides):
        return {run_of("transform=quantize", f"transform.bits={bits}", *overrides).identity.stack for bits in (4, 8)}

    assert len(stacks()) == 1
    assert len(stacks(TIMED)) == 1
    assert len(stacks(TIMED, "aggregation.deadline=1")) == 2
