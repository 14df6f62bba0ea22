"""The settings of FedPSG-AR, what nodes must agree to, and who learns what."""

import importlib.util

from flwr_vertical import Strategy, setting
from flwr_vertical.errors import ConfigError
from flwr_vertical.optional import how_to_install
from flwr_vertical.products import OPENED_PRODUCTS
from flwr_vertical.protocol.declaration import (
    BITS,
    FACTS,
    NOTHING,
    ONE,
    SOME,
    If,
    Maybe,
    Protocol,
    Repeat,
    Round,
)
from strategies.fedpsg.association_rules import RULES
from strategies.fedpsg.gan.training import IMPUTE_ROWS
from strategies.fedpsg.party import GENERATED
from strategies.fedpsg.run_plan import WRITTEN

LOCAL = ("mean", "none")
REGRESSIONS = ("mice", "forest")
NETWORKS = ("gain", "cgain", "vgain")
GENERATORS = ("local", "joint")
VARIANTS = ("impute", "ar", "ag", "cag")

DISCLOSURE = (
    ("server", "the names of all attributes"),
    (
        "server",
        "with regressions ('forest', 'mice'): over the samples that parties share, sums of "
        "numbers, levels and leaves of random trees, and of products of each two; which cells "
        "are missing, and of how many levels and leaves an attribute is",
    ),
    (
        "every party",
        "with regressions: which samples miss the same attributes at which party, and the "
        "weights of its own columns there",
    ),
    (
        "a party that misses something of a sample",
        "with regressions, if the others agree (exchange 'generated'): for each value that it "
        "misses a weighted sum of the other parties' columns, which with two parties is the "
        "other one's",
    ),
    (
        "server",
        "with variant 'ar' or 'ag': rank correlations of the attributes of each two parties, over "
        "the samples that both have",
    ),
    (
        "server",
        "with variant 'ar': for each attribute that rules generate, and the one it is generated "
        "from: how many of these samples have each pair of values or bins, which have numbers, not "
        "names; small counts, too, but none of a value that fewer than 'min-rows' samples have; "
        "and how many cells of each party rules generated, and how many no rule reached",
    ),
    (
        "server",
        "with variant 'ar' and ckks sums: such counts of all chosen attributes with each other, "
        "and rank correlations among samples that other parties share",
    ),
    (
        "every party",
        "with regressions, or variant 'ar' or 'ag': which of its samples each other party has, in "
        "groups of at least 'min-rows'; with 'ar' which of its attributes correlate with another "
        "party's most, and which of the samples it has other parties lack",
    ),
    (
        "a party that another attribute is generated from",
        "with variant 'ar': the likeliest values of that attribute by their numbers, for each of "
        "its own values (rule='argmax'), or rounded shares (rule='draw')",
    ),
    (
        "a party that lacks samples",
        "with variant 'ar', if the others agree (exchange 'generated'): for each of them the "
        "generated values, so what these tell of the attributes that they are generated from: with "
        "rule='mean' which bin or level each is in, by its number, and the shares of its own "
        "values there",
    ),
    (
        "server",
        "with networks, which each node must allow: in each training step, "
        "for each sample of the batch, the inputs of 128 neurons and the loss of "
        "reconstruction, summed over parties; which cells are missing; how many encoded "
        "columns each party has",
    ),
    (
        "every party",
        "with networks: which samples are in a batch, and the gradients by these sums; with "
        "generator='joint' an embedding of each sample, summed over parties, which with two "
        "parties is the other one's",
    ),
    ("every party", "with imputer='cgain', which each node must allow: the label of each sample"),
    ("server and any one party together", "all columns that entered the products"),
    ("nobody else", "a value of a sample"),
)


_GROUP_SEED = Round("seal_group_seed", "the group seed, sealed for each other party", ask=ONE)

_EMBEDDED = If(
    "generator == 'joint'", Round("embed", "summed, embeddings under the group's streams")
)

_NETWORKS = Protocol(
    If("generator == 'joint'", _GROUP_SEED),
    Round("receive", "which cells are missing, widths of encoded columns", tells=(FACTS, BITS)),
    Repeat(
        _EMBEDDED,
        Round("forward", "summed, inputs of 128 neurons and losses of a batch", tells=BITS),
        If(
            "generator == 'joint'",
            Round("by_others", "summed, gradients under the group's streams"),
        ),
        Round("update"),
        at_most="iterations",
    ),
    Repeat(
        _EMBEDDED,
        Round("impute", "how many cells were filled", tells=FACTS),
        at_most=f"ceil(n_samples / {IMPUTE_ROWS})",
    ),
    Round("finish", "how many cells were filled", tells=FACTS),
)
_REGRESSIONS = Protocol(
    Round("take_up", "which cells are missing, levels and leaves of attributes", tells=FACTS),
    OPENED_PRODUCTS,
    Round("predict", "summed, terms under the group's streams", tells=(NOTHING, BITS)),
    Round("fill", "how many cells were filled", tells=FACTS),
)

PROTOCOL = Protocol(
    Round("prepare", "names of attributes, public keys", tells=FACTS),
    If(
        "variant in ('ar', 'ag')",
        Maybe(
            OPENED_PRODUCTS,  # of rank scores
            If(
                "variant == 'ar'",
                Maybe(
                    OPENED_PRODUCTS,  # of indicators of values
                    Round(
                        "generate",
                        "codes of generated cells, sealed for their party",
                        tells=(NOTHING, BITS),
                        ask=SOME,
                    ),
                ),
            ),
        ),
    ),
    If(
        f"not federated or imputer in {LOCAL}",
        Round("complete", "how many cells were filled", tells=FACTS),
        otherwise=(If(f"imputer in {REGRESSIONS}", _REGRESSIONS, otherwise=(_NETWORKS,)),),
    ),
    hands_over=WRITTEN,
)
"""What a run exchanges after the alignment."""


class FedPSGSettings(Strategy):
    """What the strategy reads."""

    variant: str = setting(
        "impute",
        "What generates the attributes of a sample that a party lacks: 'impute' leaves all to the "
        "imputer (the paper's FedPSG-AR-0). The paper's own have some by other means first: 'ar' "
        "by association rules; 'ag' chooses the same attributes, and each party generates them "
        "from its own table alone; 'cag' chooses, too, by the party's own table: attributes that "
        "correlate with each other.",
        choices=VARIANTS,
    )
    n_associated: int = setting(
        5,
        "How many attributes of a party 'ar', 'ag' and 'cag' generate first at most (the paper's "
        "Cnum), those that correlate most with another party's.",
        at_least=1,
    )
    rule: str = setting(
        "argmax",
        "What a rule gives: the value with the largest share, a random one of several (the "
        "paper's); the mean of a number, the median of ordered levels, the likeliest of others; or "
        "a value drawn by the shares. With 'draw' regressions draw, too; else they give what is "
        "expected.",
        choices=RULES,
    )
    threshold: float = setting(
        0.0,
        "Least absolute rank correlation of an attribute that rules generate; the paper advises "
        "0.5, which on its data one attribute passes or none.",
        at_least=0,
        below=1,
    )
    bins: int = setting(
        20, "Most groups of values of an attribute in a table of counts.", at_least=2, at_most=200
    )
    imputer: str = setting(
        "forest",
        "What fills the other attributes of generated samples, and missing cells: regressions on "
        "what all parties know of the sample ('mice'), also on leaves of random trees ('forest'); "
        "the mean or most frequent level of the party's own column; nothing; or networks that all "
        "parties train together (VF-GAIN, VF-CGAIN, VF-VGAIN), which each node must allow; 'cgain' "
        "gives the labels to all parties.",
        choices=(*REGRESSIONS, *LOCAL, *NETWORKS),
    )
    trees: int = setting(
        100,
        "Random trees of 'forest', drawn by the parties that have a sample; fewer where there are "
        "less than three samples for each leaf, which parties without a 'min-rows' of their own "
        "want of each group of samples that is told of.",
        at_least=1,
    )
    generator: str = setting(
        "local",
        "What a network is given of a sample: what its own party has (the paper's), or an "
        "embedding of what the others have as well.",
        choices=GENERATORS,
    )
    iterations: int = setting(10_000, "Training steps of the networks.", at_least=1)
    batch: int = setting(128, "Samples in a step.", at_least=2)
    learning_rate: float = setting(1e-3, "Of Adam.", above=0)
    alpha: float = setting(
        100.0,
        "Weight of the reconstruction of observed values against the discriminator; the paper "
        "states none, GAIN's is 100.",
        above=0,
    )

    federated: bool = setting(
        True,
        "Whether parties learn together how to fill the other attributes; else each does from its "
        "own table (the paper's local imputation).",
    )
    hidden: float = setting(
        0.0,
        "Share of a party's samples in a step whose values the networks have to generate although "
        "it has them, so that they are trained on what they are for. The paper has none.",
        at_least=0,
        below=1,
    )

    disclosure = DISCLOSURE
    protocol = PROTOCOL

    @property
    def exchanges_asked(self) -> tuple[str, ...]:
        """What every node must agree to: values of single samples for another party, and so on."""
        asked = [GENERATED] if self.variant == "ar" or self._learner in REGRESSIONS else []
        asked += ["sums"] if self._learner in NETWORKS else []
        return (*asked, "labels") if self._learner == "cgain" else (*asked,)

    @property
    def _learner(self) -> str:
        """What all parties learn together, if anything."""
        return self.imputer if self.federated else ""

    def check(self) -> None:
        """Refuse settings that do not go together; PyTorch must be there for networks."""
        if self.imputer in NETWORKS and importlib.util.find_spec("torch") is None:
            raise ConfigError(f"imputer {self.imputer!r} {how_to_install(['torch'])}")
        if self.generator == "joint" and self.imputer not in NETWORKS:
            raise ConfigError(
                f"generator='joint' is for the imputers {', '.join(NETWORKS)}, and imputer is "
                f"{self.imputer!r}"
            )
        if not self.federated and (self.generator == "joint" or self.imputer == "cgain"):
            raise ConfigError(
                "federated=False has each party learn alone, without other parties' samples "
                "(generator='joint') or labels (imputer='cgain'); take generator='local' and "
                "imputer 'gain' or 'vgain'"
            )
