"""Who learns what where trees are grown."""

DISCLOSURE = (
    (
        "server",
        "of each party: how many columns it has, how many bins each, and whether these have an "
        "order; in which of them predictions may only rise or only fall, if the node states so "
        "(trees.monotone.* of its node config); no names",
    ),
    (
        "server",
        "of each split: whose column, which bin (by numbers), which equal splits there were, "
        "where missing cells go, and which side each sample is on. Of columns of 32 bins that "
        "matter, 50 trees told 3.3 to 4.1 of 5 bits (benchmarks/trees_told.py)",
    ),
    (
        "every party",
        "in which node each labelled sample is, above the last split: from 100 trees a party "
        "guessed labels with AUC 0.70, and with 0.75 where it knew 50 of them; so which samples "
        "have a label, and which are on one side of a split of some other party's column; with l2, "
        "a power of two above l2 over the largest second derivative",
    ),
    (
        "every party",
        "how many columns each other one has, and how many bins each; which of them an iteration "
        "may use",
    ),
    (
        "a party that owns a split",
        "which samples come to it, with and without a label, and that it was the best",
    ),
    (
        "arbiter",
        "of each node, ratios of gains of its legal splits, to 2^-18, without knowing which "
        "split is which or of whom; how many there are; the number of bins of all columns. Where "
        "nodes state directions of columns: how many splits are of such, and which of these go "
        "the other way",
    ),
    (
        "server",
        "with histograms='open', which each node must allow: sums of gradients over the bins "
        "of each column and node. It knows the gradients, and can solve for the columns: with "
        "1,000 samples, least squares over 20 trees returned 96 % of a column's bins",
    ),
    (
        "server",
        "with importance='columns', which each node must allow: the name of each split's column",
    ),
    ("server and any one party together", "all columns, in bins"),
    ("a party and its helper together", "the gradients, and so the labels"),
    ("arbiter and server together", "sums of gradients over bins, as with open histograms"),
    (
        "nobody else",
        "a gradient, a label, or a value within a bin, but for what sides of splits tell",
    ),
)
