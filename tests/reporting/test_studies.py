from __future__ import annotations

import json
import time
from dataclasses import replace

from fco_cli.reporting.records.runs import read_record
from fco_cli.reporting.records.studies import collect, studies_of, with_optimality_gaps


def test_a_study_holds_the_runs_of_an_experiment(records):
    records.add("fedmid")
    records.add("feddualavg", 0.001)
    records.add("feddualavg", 0.003)
    (study,) = collect([records.root]).studies
    assert (study.name, study.slug, study.profile) == ("lasso_i", "lasso_i", "paper")
    assert study.algorithms == ["feddualavg", "fedmid"]
    assert [run.client_lr for run in study.of("feddualavg")] == [0.001, 0.003]


def test_profiles_and_overrides_form_separate_studies(records):
    records.add(client_lr=0.001)
    records.add(client_lr=0.003)
    records.add(profile="quick")
    records.add(task={"clients": 16})
    studies = collect([records.root]).studies
    assert [study.slug for study in studies] == ["lasso_i", "lasso_i_2", "lasso_i_quick"]
    assert studies[1].variant == "task.clients=16"
    assert collect([records.root]).study("lasso_i").slug == "lasso_i"


def test_every_transform_forms_a_separate_study(records):
    """Test with an older record without a transform; the optimum, which sends nothing, joins every study."""
    records.add(client_lr=0.01)
    records.add(client_lr=0.02, transform={"name": "none"})
    records.add(transform={"name": "topk", "share": 0.1})
    records.add("optimum", transform={"name": "topk", "share": 0.1})
    plain, sparse = collect([records.root]).studies
    assert [len(plain.runs), len(sparse.runs)] == [3, 2]
    assert sparse.variant == "transform.name=topk, transform.share=0.1"


def test_optimum_joins_the_studies_of_every_profile(records):
    records.add(profile="quick")
    records.add(profile="paper")
    records.add("optimum", profile="quick", f1=(0.0, 1.0))
    for study in collect([records.root]).studies:
        assert study.algorithms == ["feddualavg", "optimum"]


def test_a_run_found_twice_counts_once(records):
    folder = records.add()
    results = collect([records.root, folder.parent, records.root])
    assert len(results.studies[0].runs) == 1


def test_runs_without_an_experiment_are_grouped_by_task(records):
    records.add(experiment=None)
    (study,) = collect([records.root]).studies
    assert study.name == "lasso"
    assert (study.rule.metric, study.rule.mode) == ("objective", "min")
    assert study.panels == ["objective", "f1"]


def test_the_table_has_a_row_per_run(records):
    records.add("fedmid")
    records.add("optimum", f1=(0.0, 1.0))
    table = collect([records.root]).table().set_index("algo")
    assert table.loc["fedmid", "f1"] == 0.7
    assert table.loc["fedmid", "server_lr"] == 1.0
    assert table.loc["optimum", ["client_lr", "server_lr"]].isna().all()


def test_baselines_are_identified_by_the_record(records):
    """Test an unknown algorithm, which the record marks as a baseline."""
    records.add("feddualavg")
    folder = records.add("newton")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"federated": False, "uses": []}))
    records.add("newton", profile="quick", f1=(0, 1))
    paper, quick = collect([records.root]).studies
    assert paper.algorithms == ["feddualavg", "newton"]
    assert quick.algorithms == ["newton"]


def test_the_gap_is_to_the_optimum_of_the_same_problem(records):
    records.add("fedmid", objective=(9, 7, 6, 5))
    records.add("fedmid", seed=1, objective=(9, 7, 6, 5))  # other data, without a known optimum
    records.add("fedmid", 0.1, objective=(9, 7, 6, 5), diverged=3)
    records.add("optimum", f1=(0, 1), objective=(9, 3))
    records.add("optimum", f1=(0, 1), objective=(9, 2.5), options={"tolerance": 1e-9})
    gaps = collect([records.root]).table().set_index(["algo", "client_lr", "seed"])["optimality_gap"]
    assert gaps[("fedmid", 0.001, 0)] == 2.5  # to the better of the two optima
    assert gaps[[("fedmid", 0.001, 1), ("fedmid", 0.1, 0)]].isna().all()
    assert sorted(gaps["optimum"]) == [0, 0.5]


def test_damaged_optimum_is_ignored(records):
    records.add("fedmid", objective=(9, 7, 6, 5))
    (records.add("optimum", f1=(0, 1)) / "metrics.csv").write_text("nonsense")
    results = collect([records.root])
    assert results.table()["optimality_gap"].tolist() == [None]
    assert len(results.left_out) == 1


def test_newest_of_equal_configurations_counts(records):
    old = records.add(f1=(0, 0.1), data="before", finished_at="2026-03-01T23:30:00+01:00")
    new = records.add(f1=(0, 0.9), data="after", finished_at="2026-03-01T23:00:00+00:00")
    results = collect([records.root])
    ((run,),) = [study.runs for study in results.studies]
    assert run.folder == new
    assert results.left_out == [(old, f"superseded by a newer run with other data or code: {new.name}")]


def test_runs_with_different_models_are_different_studies(records):
    records.add()
    records.add(model={"name": "mlp", "hidden": [4]})
    results = collect([records.root])
    assert not results.left_out
    assert [study.variant for study in results.studies] == ["model.hidden=[4], model.name=mlp", "model.name=auto"]


def test_other_data_of_the_same_name_form_another_study(records):
    records.add(client_lr=0.001, data="before")
    records.add(client_lr=0.003, data="after")
    studies = collect([records.root]).studies
    assert [study.slug for study in studies] == ["lasso_i", "lasso_i_2"]
    assert all(study.variant.startswith("data or code ") for study in studies)


def test_slugs_are_unique(records):
    """Test names that contain the separator of experiment and profile."""
    records.add(experiment="lasso_quick")
    records.add(experiment="lasso", profile="quick")
    slugs = [study.slug for study in collect([records.root]).studies]
    assert len(set(slugs)) == 2


def test_time_is_linear_in_the_number_of_records(records):
    """Test with 2,000 runs, each with its own optimum; a quadratic algorithm would take minutes."""
    run = read_record(records.add())
    runs = []
    for i in range(2000):
        identity = {"family": f"{i:08x}", "problem": f"{i:08x}", "run": f"{i:08x}"}
        for algo in ("feddualavg", "optimum"):
            config = run.config | {"algo": {"name": algo}, "task": {"name": "lasso", "clients": i}}
            result = run.result | {"identity": identity, "federated": algo != "optimum"}
            runs.append(replace(run, config=config, result=result))
    start = time.process_time()
    studies = studies_of(with_optimality_gaps(runs))
    assert time.process_time() - start < 30
    assert len(studies) == 2000
    assert all(run.optimality_gap == 0 for study in studies for run in study.runs)


def test_run_shared_with_a_twin_counts_in_both_studies(records):
    """Test overlapping grids: the experiment is not part of a run's identity."""
    one = records.add(experiment="lasso_i")
    other = records.add(experiment="lasso_i_extended", twin_of="lasso_i")
    result = json.loads((one / "result.json").read_text())
    (other / "result.json").write_text(json.dumps(result))
    assert [study.name for study in collect([records.root]).studies] == ["lasso_i", "lasso_i_extended"]
