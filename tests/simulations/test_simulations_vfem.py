import os
import signal

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import VerticalError
from simulations.page import FAIL, reached
from simulations.preset import Options
from simulations.replications import Job
from simulations.vfem import fresh, missing, tables, targets
from simulations.vfem.apart import replicate_apart
from simulations.vfem.correlated import BLOCK, COMPLETE, FULL, IMPUTE, replicate_correlated
from simulations.vfem.experiments import replicate
from simulations.vfem.methods import coefficient_rmse, make_method, measure, run_method, slopes
from simulations.vfem.preset import Preset
from simulations.vfem.sample import MAR, Sample, covariance, draw_design
from simulations.vfem.sme import correlation, draw_sme, scales

pytestmark = pytest.mark.studies


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return Preset.load("vfem", Options(tmp_path_factory.mktemp("preset")))


@pytest.fixture(scope="module")
def sme_sample(preset):
    return draw_sme(preset["sme"], rows=166_207)


def explained(sample: Sample) -> float:
    X = pd.concat(sample.complete.values(), axis=1).to_numpy()
    residual = sample.labels - X @ sample.truth.to_numpy()
    return 1 - float(residual.var() / sample.labels.var())


def wide(sample: Sample) -> pd.DataFrame:
    return pd.concat(sample.complete, axis=1)


def blocks_correlation(sample: Sample) -> tuple[float, float]:
    matrix = np.abs(wide(sample).corr().to_numpy())
    owner = wide(sample).columns.get_level_values(0)
    same = np.equal.outer(owner.to_numpy(), owner.to_numpy())
    above = np.triu(np.ones_like(same), 1).astype(bool)
    return matrix[same & above].mean(), matrix[~same & above].mean()


def test_design_is_as_the_preset_says(preset):
    design = preset["design"]
    sample = draw_design(design, rows=40_000, rates=[0.0, 0.2, 0.4, 0.6, 0.9], held_out=10, seed=3)
    assert explained(sample) == pytest.approx(design["r2"], abs=0.01)
    np.testing.assert_allclose(sample.mask.mean(axis=0), [0, 0.2, 0.4, 0.6, 0.9], atol=0.01)
    empirical = wide(sample).corr().to_numpy()
    np.testing.assert_allclose(empirical, covariance(design, 0.0), atol=0.03)
    assert sample.held_out.sum() == sample.seen_labels.isna().sum() == 10
    assert (sample.truth == 0).mean() == 0.2
    assert len(sample.parties["E"]) < 0.11 * len(sample.labels)


def test_a_common_factor_correlates_parties(preset):
    design = preset["design"]
    sample = draw_design(design, rows=40_000, rates=[0.0] * 5, cross=0.3)
    np.testing.assert_allclose(wide(sample).corr().to_numpy(), covariance(design, 0.3), atol=0.03)
    assert blocks_correlation(sample)[1] == pytest.approx(0.3, abs=0.02)
    assert explained(sample) == pytest.approx(design["r2"], abs=0.01)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.95])
def test_mar_keeps_the_rate_and_depends_on_label_and_first_party(preset, rate):
    sample = draw_design(
        preset["design"], rows=40_000, rates=[0.0, rate, rate, rate, rate], mechanism=MAR
    )
    assert not sample.mask[:, 0].any()
    np.testing.assert_allclose(sample.mask[:, 1:].mean(axis=0), rate, atol=0.01)
    first = sample.complete["A"].sum(axis=1)
    for lost in sample.mask[:, 1:].T:
        assert sample.labels[lost].mean() > sample.labels[~lost].mean() + sample.labels.std() / 4
        # Among rows of about the same label the first party's columns decide.
        near = (sample.labels - sample.labels.mean()).abs() < 0.2 * sample.labels.std()
        assert first[near & lost].mean() > first[near & ~lost].mean()


def test_sme_like_data_are_as_the_paper_says(preset, sme_sample):
    sme = preset["sme"]
    shapes = [frame.shape for frame in sme_sample.complete.values()]
    assert shapes == [(166_207, columns) for columns in (12, 3, 6, 9, 5)]
    assert list(sme_sample.complete["Judicial Organ"])[:2] == ["ABNAP", "ABNCON"]
    rates = [0.5365, 0.8761, 0.9305, 0.0091, 0.9328]
    np.testing.assert_allclose(sme_sample.mask.mean(axis=0), rates, atol=0.004)
    assert 96 - 30 < sme_sample.complete_cases < 96 + 30
    assert explained(sme_sample) == pytest.approx(sme["r2"], abs=0.01)
    within, between = blocks_correlation(sme_sample)
    assert within == pytest.approx(0.28, abs=0.01)
    assert between < 0.01
    np.testing.assert_allclose(wide(sme_sample).std(), sme_sample.scale.to_numpy(), rtol=0.02)


def test_complete_cases_are_calibrated_in_the_mean(preset):
    rates = [party["missing"] for party in preset["sme"]["parties"].values()]
    assert missing.expected_share(rates, 0.0) == pytest.approx(np.prod(1 - np.array(rates)))
    shared = missing.calibrate_shared(rates, 96 / 8000)
    assert missing.expected_share(rates, shared) == pytest.approx(96 / 8000)
    rng = np.random.default_rng(0)
    mask = missing.factor_mask(rng.standard_normal(400_000), rates, shared, rng)
    assert (~mask.any(axis=1)).mean() == pytest.approx(96 / 8000, rel=0.05)
    assert missing.calibrate_shared([0.1], 0.5) == 0.0


def test_structure_does_not_depend_on_the_seed(preset):
    sme = preset["sme"]
    assert (correlation(sme) == correlation(sme)).all()
    assert np.linalg.eigvalsh(correlation(sme)).min() > 0.1
    assert np.median(scales(sme)) == 1.0
    one, two = (draw_sme(sme, rows=20_000, seed=seed) for seed in (0, 1))
    np.testing.assert_allclose(
        wide(one).mean() / one.scale.to_numpy(), wide(two).mean() / two.scale.to_numpy(), atol=0.05
    )


def test_log_normal_columns_keep_mean_variance_and_r2(preset, sme_sample):
    skewed = draw_sme(preset["sme"], rows=60_000, shape=0.8)
    np.testing.assert_allclose(wide(skewed).std(), skewed.scale.to_numpy(), rtol=0.1)
    assert (wide(skewed).skew() > 1.5).all()
    assert explained(skewed) == pytest.approx(preset["sme"]["r2"], abs=0.02)


def test_blocks_that_miss_by_the_label_keep_rates_and_complete_cases(preset, sme_sample):
    sample = draw_sme(preset["sme"], rows=166_207, by_label=True)
    np.testing.assert_allclose(sample.mask.mean(axis=0), sme_sample.mask.mean(axis=0), atol=0.005)
    assert 96 - 30 < sample.complete_cases < 96 + 30
    assert sample.labels.equals(sme_sample.labels)

    def gap(drawn):
        lost = drawn.mask[:, 1]
        return (drawn.labels[lost].mean() - drawn.labels[~lost].mean()) / drawn.labels.std()

    assert gap(sample) > 0.3
    assert abs(gap(sme_sample)) < 0.03


def test_splits_differ_in_their_test_rows_alone(preset):
    one, two = (draw_sme(preset["sme"], rows=4000, test_share=0.5, split=split) for split in (0, 1))
    assert one.labels.equals(two.labels)
    assert (one.mask == two.mask).all()
    assert (one.held_out != two.held_out).any()
    complete = ~one.mask.any(axis=1)
    assert one.held_out.sum() == round(complete.sum() / 2)
    assert complete[one.held_out].all()


def test_methods_are_what_their_names_say(preset):
    sample = draw_design(
        preset["design"], rows=400, rates=[0.0, 0.3, 0.3, 0.3, 0.3], held_out=50, seed=5
    )
    found = {}
    for name in ("Single", "CC", "Impute", "VFEM"):
        found |= measure(name, sample, "A", "masked", seed=0)
    assert found["VFEM/coefficients"] < found["CC/coefficients"] < found["Single/coefficients"]
    prior = measure("VFEM, prior", sample, "A", "masked", seed=0)
    assert prior["VFEM, prior/sigma2"] > found["VFEM/sigma2"]
    assert 0 < found["VFEM/prediction"] < found["Single/prediction"]

    # The complete-case estimates are those of least squares on the pooled complete rows.
    kept = ~sample.mask.any(axis=1) & ~sample.held_out
    X = np.column_stack([np.ones(kept.sum()), wide(sample).to_numpy()[kept]])
    pooled = np.linalg.lstsq(X, sample.labels.to_numpy()[kept], rcond=None)[0]
    result = run_method(make_method("CC", "A"), sample, "plain", 0)
    np.testing.assert_allclose(slopes(result, sample), pooled[1:], atol=1e-6)


def test_what_a_method_does_not_estimate_counts_as_zero(preset):
    sample = draw_design(preset["design"], rows=2000, rates=[0.0] * 5, seed=1)
    result = run_method(make_method("Single", "A"), sample, "plain", 0)
    others = sample.truth.drop("A", level=0)
    assert coefficient_rmse(result, sample) ** 2 > (others**2).sum() / len(sample.truth)


def test_complete_cases_that_are_too_few_are_a_failure(preset):
    sample = draw_design(preset["design"], rows=100, rates=[0.0] + [0.9] * 4)
    assert measure("CC", sample, "A", "masked", seed=0) == {"CC/failed": 1.0}


def finite_numbers(values):
    rows = [
        {"part": "finite", "mechanism": "MCAR", "rows": 1000, "A too": False, "rate": rate,
         "seed": seed, "metric": f"{name}/{number}", "value": value}
        for (rate, seed, name), value in values.items()
        for number in targets.MEASURES
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_target_compares_the_runs_that_both_could_fit():
    values = {
        (rate, seed, name): {"VFEM": 0.5, "Single": 0.9, "Impute": 0.6, "CC": 0.7}[name] + seed
        for rate in (0.4, 0.5) for seed in (0, 1) for name in ("VFEM", "Single", "Impute", "CC")
    }  # fmt: skip
    # CC fits the easy run only: its plain mean would be ahead of VFEM's.
    del values[0.5, 1, "CC"]
    table = targets.ahead(finite_numbers(values), 0.5)
    assert table.index.get_level_values("rate").tolist() == [0.5]
    assert reached([table])

    values[0.5, 0, "Impute"] = 0.1
    values[0.5, 1, "Impute"] = 1.4
    table = targets.ahead(finite_numbers(values), 0.5)
    assert table["prediction error"].tolist() == [f"{FAIL} Impute"]
    assert not reached([table])


def test_a_baseline_that_never_fits_is_beaten_and_shown_as_a_dash():
    values = {(0.5, 0, "VFEM"): 0.5, (0.5, 0, "Single"): 0.9, (0.5, 0, "Impute"): 0.6}
    frame = finite_numbers(values)
    failed = {**frame.iloc[0].to_dict(), "metric": "CC/failed", "value": 1.0}
    frame = pd.concat([frame, pd.DataFrame([failed])], ignore_index=True)
    assert reached([targets.ahead(frame, 0.5)])
    assert tables.finite(frame, "coefficients")["CC"].isna().all()


def numbers_of(width):
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(200):
        for key in ("A/x1", "B/x1"):
            error = rng.standard_normal()
            numbers = {"error": error, "std_error": width, "covered": abs(error) < 1.96 * width}
            rows += [
                {"part": "inference", "rows": 10, "cross": 0.0, "kind": "VFEM", "seed": seed,
                 "metric": f"{name}/{key}", "value": float(value)}
                for name, value in numbers.items()
            ]  # fmt: skip
    return pd.DataFrame(rows)


def test_intervals_are_judged_by_party():
    settings = {"coverage": [0.92, 0.98], "se_within": 0.1}
    assert reached([targets.intervals(numbers_of(1.0), settings)])
    table = targets.intervals(numbers_of(0.5), settings)
    assert (table[["coverage 0.92 to 0.98", "SE within 10%"]] == FAIL).all(axis=None)
    assert table.loc[("VFEM", "A"), "SE / SD"] == pytest.approx(0.5, rel=0.15)


def test_a_fresh_process_measures_itself(preset):
    job = next(job for job in preset.measured_jobs() if job.settings["method_name"] == "Impute")
    settings = {**job.settings, "rows": 2000}
    found = replicate(Job("sme", settings), None)
    assert 0.05 < found["GiB"] < 2
    assert found["seconds"] > 0
    assert found["estimate/Judicial Organ/ABNAP"] != 0
    here = fresh.measure_here(settings)
    assert here["coefficients"] == pytest.approx(found["coefficients"], abs=1e-9)


def killed(settings):
    os.kill(os.getpid(), signal.SIGKILL)  # as a system without memory does


def test_a_fit_whose_process_ends_is_an_error_that_names_the_method(monkeypatch):
    monkeypatch.setattr(fresh, "measure_here", killed)
    with pytest.raises(VerticalError, match="the fit of Impute failed: BrokenProcessPool"):
        fresh.measure_fresh({"method_name": "Impute"})


def test_with_nothing_missing_the_methods_for_correlated_parties_agree():
    settings = {"rows": 300, "widths": [2, 1], "noise": 1.0, "correlation": 0.6, "seed": 0}
    found = replicate_correlated({**settings, "rate": 0.0})
    errors = [found[f"{name}/squared error"] for name in (FULL, BLOCK, COMPLETE, IMPUTE)]
    np.testing.assert_allclose(errors, errors[0], rtol=1e-6)
    missing = replicate_correlated({**settings, "rate": 0.4})
    assert len({round(missing[f"{name}/squared error"], 12) for name in (FULL, COMPLETE)}) == 2


def test_parties_apart_get_no_intervals():
    settings = {"rows": 700, "correlation": 0.4, "widths": [1, 1, 1], "seed": 0}
    apart = replicate_apart({**settings, "rate": 0.0, "apart": True})
    assert (apart["VFEM/given"], apart["VFEM/coefficients"]) == (0.0, 3.0)
    assert not any(name.startswith("CC/") for name in apart)
    missing = replicate_apart({**settings, "rate": 0.25, "apart": False})
    assert missing["VFEM/given"] == missing["CC/given"] == 3.0
