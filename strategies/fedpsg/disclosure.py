"""Who learns what in a run of FedPSG-AR, beside alignment and sums."""

DISCLOSURE = (
    ("server", "the names of all attributes"),
    (
        "server",
        "rank correlations of the attributes of each two parties, over the samples that both have",
    ),
    (
        "server",
        "for each attribute that rules generate, and the one it is generated from: how many of "
        "these samples have each pair of values or bins, which have numbers, not names; small "
        "counts, too, but none of a value that fewer than 'min-rows' samples have",
    ),
    (
        "server",
        "with ckks sums: such counts of all chosen attributes with each other, and rank "
        "correlations among samples that other parties share",
    ),
    ("server", "how many cells of each party rules generated, and how many no rule reached"),
    (
        "every party",
        "which of its samples each other party has, in groups of at least 'min-rows'; which of "
        "its attributes correlate with another party's most, and which of the samples it has "
        "other parties lack",
    ),
    (
        "a party that another attribute is generated from",
        "the likeliest values of that attribute by their numbers, for each of its own values "
        "(rule='argmax'), or rounded shares (rule='draw')",
    ),
    (
        "a party that lacks samples",
        "if the others agree (exchange 'generated'): for each of them the generated values, so "
        "what these tell of the attributes that they are generated from: with rule='mean' "
        "which bin or level each is in, by its number, and the shares of its own values there",
    ),
    (
        "server",
        "with regressions ('mice', 'forest'): over the samples that parties share, sums of "
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
    (
        "every party",
        "with imputer='cgain', which each node must allow: the label of each sample",
    ),
    ("server and any one party together", "all columns that entered the products"),
    ("nobody else", "a value of a sample"),
)
