"""What every method on moments discloses, and to whom: rows of `Strategy.disclosure`."""

WITHHELD = (
    "server",
    "in which groups of rows a column of few values has one that is too rare to be told of; names "
    "of columns of levels of which no two are held by enough rows",
)
RECOGNISED = (
    (
        "server",
        "which parties keep a privacy ledger, and whether a party's rows of the fit are those of "
        "an earlier run",
    ),
    (
        "every party that keeps a privacy ledger",
        "whether the labels are those of an earlier run, where the server kept its secret; nothing "
        "else of them",
    ),
)
PRIVATE = (
    "server, with differential privacy (epsilon)",
    "names of columns; which samples a party leaves out for missing cells; all sums with noise "
    "only, by which they are (epsilon, delta)-differentially private for the values of a row. "
    "Units are those of the public bounds, no column is withheld, and no sample is predicted",
)
COLLUSION = (
    (
        "server and any one party together",
        "all parties' columns: the party has the seed that hides them from the server (in ckks "
        "mode it takes server and arbiter)",
    ),
    (
        "a party and its helper together",
        "the labels: one has these under a mask, the other the seed of the mask",
    ),
    (
        "nobody alone, with exchange 'moments'",
        "a value of another party's columns, or a fitted value; of the parties, a label",
    ),
)
