"""docs/privacy.md says what the results of the study say."""

from __future__ import annotations

from studies.privacy import measurement
from studies.privacy.measurement import EPSILONS, SEEDS, all_jobs, read_results
from studies.privacy.page import PAGE, render


def made_up(job):
    better = 0.1 if job.method == "fafed combined" else 0.0
    return {
        **job._asdict(),
        "noise": None if job.epsilon is None else 1.0,
        "step": 0.1,
        "trials": [[0.1, 0.5]],
        "accuracy": [0.5 + better, 0.6 + better, 0.7 + better],
        "spent": job.epsilon,
    }


def test_the_page_is_the_one_that_the_results_give():
    page = PAGE.read_text("utf-8")
    assert page == render(read_results(), page), "python -m studies.privacy --render-only"


def test_measured_runs_stay_within_their_epsilon():
    found = read_results()
    for entry in found.get("measured", []):
        assert len(entry["accuracy"]) == len(SEEDS)
        assert entry["spent"] is None or entry["spent"] <= entry["epsilon"]


def test_every_cell_has_its_mean_and_deviation():
    results = {"seeds": {"measuring": list(SEEDS)}, "measured": [made_up(j) for j in all_jobs()]}
    page = render(results, "before\n<!-- accuracy -->\n<!-- /accuracy -->\nafter\n")
    assert page.count("0.600 ± 0.100") == 2 * 4 * len(EPSILONS)
    assert page.count("0.700 ± 0.100") == 2 * (len(EPSILONS) - 1)
    assert "better than with two gradients in 8 of the 8 cells" in page


def test_methods_are_tuned_with_the_same_number_of_trials():
    assert {len(measurement._steps(job)) for job in all_jobs()} == {5}


def test_the_noise_is_rounded_up_and_combined_runs_say_so():
    job = measurement.Job("high", "fafed combined", 2.0)
    found = measurement._experiment(job, {job.label: 1.23401}, 1, 0.03)
    assert found.privacy["noise"] == 1.235
    assert found.privacy["combine"] is True
    assert found.seed == 1
