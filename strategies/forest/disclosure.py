"""Who learns what where a forest is grown, and where it predicts."""

FOREST_DISCLOSURE = (
    (
        "server",
        "of each party: how many columns it has, how many bins each, and whether these have an "
        "order; no names; in the end how many splits it has, and how many rows come to them in all",
    ),
    (
        "server",
        "of the trees of a batch together, how many nodes may be split on each level; of samples "
        "without a label, votes on a grid: prediction-bits of a node's policy (12) for a row, over "
        "all classes. It sends the seed of draws, and so knows them",
    ),
    (
        "every party",
        "which samples have a label; how often each tree has each sample, and in which node each "
        "sample is, labelled or not",
    ),
    (
        "every party",
        "of each split, whose column, which bin (by numbers), which equal splits there were, where "
        "missing cells go, and on which side each sample is that comes to it",
    ),
    (
        "every party",
        "how many columns each other one has, and how many bins each; which of them a batch may "
        "use; how many bits of a row each other one lets predictions tell",
    ),
    (
        "arbiter",
        "of each node, ratios of gains of its legal splits, to 2^-18, and whether none has any, "
        "without knowing which split is which or of whom; how many there are; the number of bins "
        "of all columns in use",
    ),
    (
        "arbiter",
        "of votes, the digits below the grid, from which those of few trees can be worked out, "
        "without knowing what samples they are of",
    ),
    ("server and any one party together", "all columns, in bins"),
    (
        "arbiter and any one party together",
        "sums of labels, and numbers of rows, over the bins of each column and node: what a "
        "column's owner holds can be solved from them",
    ),
    ("a party and its helper together", "the labels, and what each leaf predicts"),
    ("nobody else", "a label; a value within a bin; what a leaf predicts"),
)

PREDICT_DISCLOSURE = (
    (
        "server",
        "votes of each sample on a grid: prediction-bits of a node's policy (12) for a row, over "
        "all classes; on how many levels there are splits",
    ),
    (
        "every party",
        "in which node of each tree each sample is, and on which side of the splits that it comes "
        "to; how many bits of a row each other one lets predictions tell",
    ),
    (
        "arbiter",
        "of votes, the digits below the grid, from which those of few trees can be worked out, "
        "without knowing what samples they are of",
    ),
    ("server and any one party together", "in which node of each tree each sample is"),
    (
        "a party and another together, the first two of the fit",
        "what each leaf predicts, and so all votes",
    ),
    ("nobody", "a value within a bin"),
)
