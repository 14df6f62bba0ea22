"""Settings that no strategy takes: every message names the setting and what is expected.

Values of another type, infinite ones and no numbers are refused for all settings alike: see
`tests/settings/test_settings_record.py`.
"""

import pytest

from flwr_vertical import load_strategy
from flwr_vertical.errors import ConfigError

COPULAS = "vcds evcds ievcds"
LEAST_SQUARES = "complete-case mean-impute single"
# Strategies, settings, and what is said.
REFUSED = [
    (COPULAS, {"epsilon": 0.0}, "epsilon must be a number above 0"),
    (COPULAS, {"budget": "all"}, "unknown budget 'all'; expected one of"),
    (COPULAS, {"rank_share": 1.0}, "rank_share must be a number above 0 and below 1"),
    (COPULAS, {"rows": -5}, "rows must be an integer"),
    (COPULAS, {"min_joint": 1}, "min_joint must be an integer of at least 3"),
    (COPULAS, {"missing": "drop"}, "unknown missing 'drop'; expected one of"),
    (COPULAS, {"margin_noise": "gauss"}, "unknown margin_noise 'gauss'; expected one of"),
    (COPULAS, {"bounds": {"x": (3, 1)}}, "bounds must give"),
    (COPULAS, {"bounds": "x=1:3"}, "bounds must give"),
    (COPULAS, {"margin": "histogram"}, "unknown margin 'histogram'; expected one of"),
    (COPULAS, {"resolution": {"x": 0}}, "resolution must give"),
    (COPULAS, {"resolution": "x=1"}, "resolution must give"),
    (COPULAS, {"min_level": -1}, "min_level must be an integer"),
    ("ievcds", {"iterations": 0}, "iterations must be an integer"),
    ("fknn", {"n_neighbors": 0}, "n_neighbors must be an integer of at least 1, got 0"),
    ("fknn", {"weighting": "mean"}, r"weighting 'mean'; expected one of \['party-mean', 'exact'\]"),
    ("fknn", {"weights": "gauss"}, r"weights 'gauss'; expected one of \['uniform', 'distance'\]"),
    ("fknn", {"block_pairs": -1}, "block_pairs must be .*-1"),
    (LEAST_SQUARES, {"missing_labels": "zero"}, "missing_labels"),
    ("single", {"party_name": 3}, "party_name"),
    ("vfem-iterations", {"learning_rate": 0}, "learning_rate"),
    ("vfem-iterations", {"max_iter": 0}, "max_iter"),
    ("vfem-iterations", {"tol": 1.0}, "tol"),
    ("vfem-iterations", {"sketch_size": -1}, "sketch_size"),
    ("vfem", {"covariance": "banded"}, "covariance"),
    ("vfem", {"noise_prior": -1.0}, "noise_prior"),
    ("glm-admm", {"penalty": "ridge"}, "unknown penalty 'ridge'"),
    ("glm-admm", {"lla_steps": 0}, "lla_steps must be an integer of at least 1"),
    ("glm-admm", {"tol": 0}, "tol must be a number above 0 and below 1, got 0"),
    ("glm-admm", {"epsilon": 0.0}, "epsilon must be .*above 0"),
    ("svm", {"rows": "mean"}, "goes with loss='squared' only"),
    ("vanilla-vfl", {"networks": "resnet18"}, "are for images and need their shape"),
    ("fedhssl", {"layers": 1}, "layers must be 2 or more"),
    ("final-net", {"width": 7}, "width must be even"),
    ("final-net", {"precision": "mixed"}, "float32"),
    ("fedpsg-ar", {"generator": "joint"}, "is for the imputers gain, cgain, vgain"),
    ("mst aim", {"epsilon": 0.0}, "epsilon must be a number above 0"),
    ("glm", {"family": "gamma"}, "unknown family 'gamma'"),
    ("glm", {"penalty": "elastic"}, "unknown penalty 'elastic'"),
    ("glm", {"lambdas": []}, "lambdas is empty"),
    ("glm", {"lambdas": ""}, "lambdas is empty"),
    ("glm", {"lambdas": [0.1, -1]}, "numbers of at least 0, or 'bic', got -1"),
    ("glm", {"lambdas": "aic"}, "numbers of at least 0, or 'bic', got 'aic'"),
    ("glm", {"l2": -1.0}, "l2 must be a number of at least 0"),
    ("glm", {"l2": "aic"}, "l2 must be a number of at least 0, or 'gcv', got 'aic'"),
    ("glm", {"l2": "gcv", "rows": "all"}, "l2='gcv' needs rows='complete'"),
    ("glm", {"rows": "all", "intercept": False}, "needs intercept=True"),
]
# Settings of before, and what to use.
REMOVED = [
    ("glm", {"exchange": "sums"}, "the paper's iterations are strategy 'glm-admm'"),
    ("glm", {"dp": "moments"}, "set epsilon and bounds"),
    ("glm", {"n_lambdas": 3}, "state lambdas="),
    ("gbdt", {"products": "encrypted"}, "it was removed: histograms='open'"),
    ("forest", {"routing": "server"}, "it was removed: nothing in its place.*'gbdt'"),
    ("vfem", {"exchange": "sums"}, "exchange.*removed.*'vfem-iterations'"),
    ("vfem", {"step": "gradient"}, "step.*removed.*'vfem-iterations'"),
    ("vfem", {"standard_errors": "sketch"}, "standard_errors.*removed.*'vfem-iterations'"),
]


def test_settings_that_cannot_be_used_are_named():
    for error, table in ((ConfigError, REFUSED), (TypeError, REMOVED)):
        for names, settings, says in table:
            for name in names.split():
                with pytest.raises(error, match=says):
                    load_strategy(name)(**settings)
