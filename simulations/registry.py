"""The studies there are. A new one adds an entry here and a module with an ``open_study``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

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
        """Run the study."""
        open_study: Callable[[Options], Study] = import_module(self.module).open_study
        return open_study(options).run()


STUDIES: dict[str, Entry] = {
    "fknn": Entry(
        summary="FKNN imputation on motor data: Tables 3-5, Figures 4-18 (Du et al., 2024)",
        module="simulations.fknn.study",
        description=(
            "Reproduces the experiments of Du, Wang, Meng and Guo (2024), 'Privacy-Preserving "
            "Vertical Federated KNN Feature Imputation Method', Electronics 13(2), 381, on the "
            "motor data of FATE (motor/motor_hetero_guest.csv and motor_hetero_host.csv, plain or "
            "gzip-compressed). The full study takes some minutes on two cores, --quick less than "
            "one. Every number of its settings and where it comes from is in "
            "simulations/fknn/preset.toml."
        ),
    ),
    "vfem": Entry(
        summary="VFEM regression on generated data: Tables 1-3, Figure 4 (Tang, Wang et al.)",
        module="simulations.vfem.study",
        description=(
            "Compares vertical federated EM (Tang, Wang, Feng and Li) with regressions on one "
            "party's columns, on complete cases and on mean-imputed tables: over missing rates "
            "and mechanisms, and on 166,207 generated rows like the paper's, which are not public; "
            "checks intervals and standard errors. The paper's numbers are shown beside. "
            "The full study takes some forty minutes on two cores, --quick less than "
            "one. Every number of its settings and where it comes from is in "
            "simulations/vfem/preset.toml."
        ),
    ),
    "copula": Entry(
        summary="Synthetic tables and sparse GLMs: Tables 1-7 and 9 (Tang, Feng et al.)",
        module="simulations.copula.study",
        description=(
            "Fits sparse regressions (VFL-GLM-VS) to generated data and to synthetic tables made "
            "of them by VCDS, EVCDS and IEVCDS (Tang, Feng, Li and Wang), complete and with "
            "blocks missing; on data like the paper's firms, which are not public; and attacks "
            "the synthetic tables. The paper's numbers are shown beside. The "
            "full study takes some two hours on two cores, --quick a minute. Every number "
            "of its settings and where it comes from is in simulations/copula/preset.toml."
        ),
    ),
    "synthesis": Entry(
        summary="Synthetic tables on real columns: margins and quality, nothing stated",
        module="simulations.synthesis.study",
        description=(
            "Makes synthetic tables of Bank Marketing, German Credit, motor data (bank/, german/, "
            "motor/) and generated columns with heavy tails, zeros and odd scales, at epsilon 1 "
            "and 100, and measures every column's distance and the quality. The full study takes "
            "some three minutes of processor time; what docs/records has is not run again. "
            "--quick takes some seconds. Every number of its settings is in "
            "simulations/synthesis/preset.toml."
        ),
        writes=True,
        keeps=True,
    ),
    "fedpsg": Entry(
        summary="FedPSG-AR, samples that a party lacks: Tables 1-7, Experiment 3 (Liu et al.)",
        module="simulations.fedpsg.study",
        description=(
            "Generates the samples that party B lacks on Bank Marketing, German Credit, Letter "
            "Recognition (bank/bank_full.csv, german/german_credit.csv, "
            "letter/letter_recognition.csv) and, where it is, News "
            "(news/OnlineNewsPopularity.csv): by FedPSG-AR (Liu, He, Tan et al.) and its variants, "
            "by local generators of B, and by what both must be read by: a random draw, the mean, "
            "and the best conditional mean. Trains classifiers on the completed tables. The full "
            "study trains hundreds of networks for 1,000 steps each, which takes hours (the "
            "paper's 10,000, by --set networks.iterations=10000 --set "
            "networks.local_iterations=10000, a day); choose by --parts, --datasets, --ratios, "
            "--methods and --only-seeds. What docs/records has is not run again. Every number says "
            "how many seeds stand behind it; several commands can share one --output. --quick "
            "takes less than a minute. Every number of its settings is in "
            "simulations/fedpsg/preset.toml."
        ),
        writes=True,
        choices={
            "parts": "methods_compared, imputers, cnum, downstream, aligned (default: all)",
            "datasets": "Bank, Credit, Letter, News (default: preset)",
            "ratios": "shares that B lacks, such as 0.5 (default: preset)",
            "methods": "such as 'FedPSG-AR (VF-GAIN)' 'random draw' (default: all)",
            "only-seeds": "seeds to run now, below --seeds, such as 0 2 (default: all)",
        },
        keeps=True,
    ),
    "false_vfl": Entry(
        summary="FALSE-VFL and four baselines: Tables 2, 11-18, Figures 2, 4-8 (Hong et al.)",
        module="simulations.false_vfl.study",
        description=(
            "Trains FALSE-VFL (Hong, Park and Hwang), variants I and II, and Vanilla VFL, "
            "LASER-VFL, PlugVFL and FedHSSL under six mechanisms of missing blocks and tests them "
            "under seven, on Isolet and Fashion-MNIST, and on HAPT and ModelNet10 where a user has "
            "them. A run of FALSE-VFL takes tens of minutes of one core, all of them days: choose "
            "by --datasets, --methods, --train and --only-seeds; a run that was stopped goes on "
            "from its last checkpoint, and several commands can share one --output. --quick takes "
            "a minute. Every number of its settings and where it comes from is in "
            "simulations/false_vfl/preset.toml."
        ),
        writes=True,
        choices={
            "datasets": "isolet, fashion_mnist, hapt, modelnet10 (default: preset)",
            "methods": "such as FALSE-VFL-I PlugVFL (default: all)",
            "train": "mechanisms of training, such as 'MCAR 2' 'MNAR 7' (default: all)",
            "simsiam": "without, with: the baselines' pretraining (default: both)",
            "only-seeds": "seeds to run now, below --seeds, such as 0 2 (default: all)",
        },
        keeps=True,
    ),
    "trees": Entry(
        summary="Vertical boosting beside scikit-learn's, and Bank with blocks missing",
        module="simulations.trees.study",
        description=(
            "Fits VerticalGBDT and scikit-learn's booster to Bank Marketing, German Credit, "
            "Letter Recognition and motor data (bank/, german/, letter/, motor/) with and without "
            "missing cells; and to Bank where one party lacks 20, 50 and 80 % of the samples, "
            "beside two models, zeros, donors, each party alone and LASER-VFL. The full study "
            "takes an hour of processor time; choose by --parts, --datasets, --shares, --methods "
            "and --only-seeds. What docs/records has is not run again. --quick takes less than "
            "half a minute. With --file it runs on a table of your own, beside LightGBM (where it "
            "is installed) and scikit-learn's booster. Every number of its settings is in "
            "simulations/trees/preset.toml."
        ),
        writes=True,
        choices={
            "parts": "pooled, blocks (default: both)",
            "datasets": "Bank, Credit, Letter, motor (default: preset)",
            "shares": "of cells, or of party b's samples, such as 0.5 (default: preset)",
            "methods": "such as 'two models', open, hidden (default: all)",
            "only-seeds": "seeds to run now, such as 0 2 (default: all)",
        },
        keeps=True,
        own_files=True,
    ),
    "attacks": Entry(
        summary="Attacks on what nodes see, for every built-in strategy, mode and view",
        module="simulations.attacks.study",
        description=(
            "Runs every built-in strategy on generated tables, records all messages, and attacks "
            "the view of the server, of an arbiter and of each party: spans and 0/1 columns in "
            "them, known coefficients, moments, subset sums, atoms of row sets, distances, pads, "
            "labels; predictions, repeated runs, synthetic tables. Shows the share of cells "
            "recovered beside what the outputs alone allow. The full suite takes some ten minutes "
            "on two cores, --quick about one. Every number of its settings is in "
            "simulations/attacks/preset.toml."
        ),
        writes=True,
    ),
    "audits": Entry(
        summary="Audits of epsilon: a lower bound for every mechanism, by many runs",
        module="simulations.audits.study",
        description=(
            "Runs every mechanism with noise many times on two tables that differ in one row, and "
            "bounds its epsilon from below: a bound above the stated epsilon would show an error. "
            "The full audits take some five minutes of one core, --quick one. Every "
            "number of its settings is in simulations/audits/preset.toml."
        ),
        writes=True,
    ),
}
