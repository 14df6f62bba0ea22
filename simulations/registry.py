"""The studies there are. A new one adds an entry here and a module with an ``open_study``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

from flwr_vertical.errors import ConfigError
from flwr_vertical.optional import EXTRAS, how_to_install
from simulations.preset import Options
from simulations.study import Outcome, Study


@dataclass(frozen=True)
class Entry:
    """A study that the command line offers."""

    summary: str  # One line for ``list``
    # Module that defines ``open_study(options) -> Study``; imported only when the study runs
    module: str
    # What ``--help`` shows: what is reproduced, from which data, how long it takes
    description: str
    writes: bool = False  # Whether it has a page of the documentation (``--write``)
    # Options that choose among the replications, where these take hours: name and help
    choices: dict[str, str] = field(default_factory=dict)
    # Whether replications are kept in the repository (`simulations.kept`): a run starts from
    # them, and ``--write`` writes them with the page
    keeps: bool = False
    # Whether it takes a user's file in place of its data sets (``--file``)
    own_files: bool = False

    def run(self, options: Options) -> Outcome:
        """Run the study; `ConfigError` where a package that it needs is not installed."""
        try:
            open_study: Callable[[Options], Study] = import_module(self.module).open_study
            return open_study(options).run()
        except ModuleNotFoundError as error:
            if (missing := error.name or "") not in EXTRAS:
                raise
            raise ConfigError(f"this study {how_to_install([missing])}") from error


STUDIES: dict[str, Entry] = {
    "fknn": Entry(
        summary="FKNN imputation on motor data: Tables 3-5, Figures 4-18 (Du et al., 2024)",
        module="simulations.fknn.study",
        description="Imputes the motor data of FATE (motor/motor_hetero_guest.csv and "
        "motor_hetero_host.csv, plain or gzip-compressed). The full study takes some minutes on "
        "two cores; what docs/records has is not run again. --quick takes less than one.",
        writes=True,
        keeps=True,
    ),
    "vfem": Entry(
        summary="VFEM regression on generated data: Tables 1-3, Figure 4 (Tang, Wang et al.)",
        module="simulations.vfem.study",
        description="Compares VFEM with regressions on one party's columns, on complete cases and "
        "on mean-imputed tables, also on 166,207 generated rows like the paper's, which are not "
        "public; checks intervals. The full study takes some forty minutes on two cores; what "
        "docs/records has is not run again. --quick takes less than one.",
        choices={
            "parts": "sme, splits, repeats, finite, inference, correlated, apart, parting "
            "(default: all)",
            "only-seeds": "seeds to run now, below --seeds, such as 0 2 (default: all)",
        },
        writes=True,
        keeps=True,
    ),
    "copula": Entry(
        summary="Synthetic tables and sparse GLMs: Tables 1-7 and 9 (Tang, Feng et al.)",
        module="simulations.copula.study",
        description="Fits sparse regressions to generated data and to synthetic tables made of "
        "them by VCDS, EVCDS and IEVCDS; attacks the synthetic tables. The full study takes some "
        "hours on two cores; what docs/records has is not run again. --quick takes a minute.",
        choices={
            "parts": "complete, missing, sme, attacks (default: all)",
            "rows": "such as 1000 3000 (default: preset)",
            "methods": "such as VCDS 'EVCDS (fresh rows)' (default: all)",
            "only-seeds": "seeds to run now, below --seeds, such as 0 2 (default: all)",
        },
        writes=True,
        keeps=True,
    ),
    "synthesis": Entry(
        summary="Synthetic tables on real columns: margins, quality, MST and AIM, attacks",
        module="simulations.synthesis.study",
        description="Makes synthetic tables of Bank Marketing, German Credit, motor data (bank/, "
        "german/, motor/), Adult where it is (adult/) and generated columns, measures and attacks "
        "them. The full study takes an hour of processor time; what docs/records has is not run "
        "again. --quick takes some seconds.",
        writes=True,
        keeps=True,
    ),
    "fedpsg": Entry(
        summary="FedPSG-AR, samples that a party lacks: Tables 1-7, Experiment 3 (Liu et al.)",
        module="simulations.fedpsg.study",
        description="Generates the samples that party B lacks on Bank Marketing, German Credit, "
        "Letter Recognition, motor data (bank/bank_full.csv, german/german_credit.csv, "
        "letter/letter_recognition.csv, motor/) and, where it is, News "
        "(news/OnlineNewsPopularity.csv), and trains classifiers on the completed tables. The full "
        "study trains hundreds of "
        "networks for 1,000 steps each, which takes hours (the paper's 10,000, by --set "
        "networks.iterations=10000 --set networks.local_iterations=10000, a day). What "
        "docs/records has is not run again; several commands can share one --output. --quick "
        "takes less than a minute.",
        choices={
            "parts": "methods_compared, imputers, cnum, downstream, aligned, default (of all: all)",
            "datasets": "Bank, Credit, Letter, News, Motor, 'Breast cancer' (default: preset)",
            "ratios": "shares that B lacks, such as 0.5 (default: preset)",
            "methods": "such as 'FedPSG-AR (VF-GAIN)' 'random draw' (default: all)",
            "only-seeds": "seeds to run now, below --seeds, such as 0 2 (default: all)",
        },
        writes=True,
        keeps=True,
    ),
    "false_vfl": Entry(
        summary="FALSE-VFL and four baselines: Tables 2, 11-18, Figures 2, 4-8 (Hong et al.)",
        module="simulations.false_vfl.study",
        description="Trains both variants of FALSE-VFL and four baselines under six mechanisms of "
        "missing blocks and tests them under seven, on Isolet and Fashion-MNIST, and on HAPT and "
        "ModelNet10 where a user has them. A run of FALSE-VFL takes tens of minutes of one core, "
        "all of them days; a run that was stopped goes on from its last checkpoint, and several "
        "commands can share one --output. --quick takes a minute.",
        choices={
            "datasets": "isolet, fashion_mnist, hapt, modelnet10 (default: preset)",
            "methods": "such as FALSE-VFL-I PlugVFL (default: all)",
            "train": "mechanisms of training, such as 'MCAR 2' 'MNAR 7' (default: all)",
            "simsiam": "without, with: the baselines' pretraining (default: both)",
            "only-seeds": "seeds to run now, below --seeds, such as 0 2 (default: all)",
        },
        writes=True,
        keeps=True,
    ),
    "trees": Entry(
        summary="Vertical boosting beside scikit-learn's, and Bank with blocks missing",
        module="simulations.trees.study",
        description="Fits VerticalGBDT and scikit-learn's booster to Bank Marketing, German "
        "Credit, Letter Recognition and motor data (bank/, german/, letter/, motor/), and to Bank "
        "where one party lacks samples; at its defaults beside tuned LightGBM on tables with "
        "levels and of scikit-learn. The full study takes an hour of processor time; what "
        "docs/records has is not run again. --quick takes less than half a minute. With --file it "
        "runs on a table of your own, beside LightGBM (where it is installed) and scikit-learn's "
        "booster.",
        choices={
            "parts": "pooled, blocks, defaults (default: all)",
            "datasets": "Bank, Credit, Letter, motor, 'Bank with levels' ... (default: preset)",
            "shares": "of cells, or of party b's samples, such as 0.5 (default: preset)",
            "methods": "such as 'two models', open, hidden (default: all)",
            "only-seeds": "seeds to run now, such as 0 2 (default: all)",
        },
        writes=True,
        keeps=True,
        own_files=True,
    ),
    "attacks": Entry(
        summary="Attacks on what nodes see, for every built-in strategy, mode and view",
        module="simulations.attacks.study",
        description="Runs every built-in strategy on generated tables, records all messages, and "
        "attacks the view of the server, of an arbiter and of each party. The full suite takes "
        "some ten minutes on two cores, --quick about one.",
        writes=True,
    ),
    "audits": Entry(
        summary="Audits of epsilon: a lower bound for every mechanism, by many runs",
        module="simulations.audits.study",
        description="Runs every mechanism with noise many times on two tables that differ in one "
        "row, and bounds its epsilon from below. The full audits take some five minutes of one "
        "core, --quick one.",
        writes=True,
    ),
}
