"""A node's policy in words, for its owner."""

from flwr_vertical.policy.record import ANY, FEW_IDS, FOREIGN_IDS, Policy


def in_words(policy: Policy) -> list[str]:
    """Return sentences that say what a node with this policy does and refuses."""
    p = policy
    rows = "100 rows, or three times the columns and labels if that is more"
    return [
        f"It takes part in {_names(p.strategies, 'any installed method', 'no method')}.",
        f"It imports {_names(p.modules, 'any module', 'no module')} that a run names as "
        "module:Class.",
        f"Private sums: {_names(p.aggregations, 'any mode', 'none')}."
        + (
            " In 'plain' the server sees its term of each sum."
            if {"plain", ANY} & {*p.aggregations}
            else ""
        ),
        f"Samples are aligned by {_names(p.alignments, 'any protocol', 'none')}."
        + (" 'plain' tells its IDs to the server." if {"plain", ANY} & {*p.alignments} else ""),
        "In a run it blinds at most "
        f"{FOREIGN_IDS if p.foreign_ids is None else p.foreign_ids:g} times as many IDs of others "
        f"as it has rows{f', or {FEW_IDS}' if p.foreign_ids is None else ''}.",
        f"It hands its column {p.labels!r} to the server if a run asks for it as labels, and no "
        "other column."
        if p.labels
        else "It hands out no column as labels.",
        f"A run has at least {p.min_parties} part{'y' if p.min_parties == 1 else 'ies'}.",
        "Exchanges that tell more than a method's default one: "
        f"{_names(p.exchanges, 'all', 'none')}.",
        "Nothing that is opened, and no combination of it over all runs, describes fewer than "
        f"{rows if p.min_rows is None else f'{p.min_rows:,} rows'}.",
        "Its rows are multiplied with at most "
        + (
            "one vector of labels for ten rows of the smallest set"
            if p.vectors is None
            else f"{p.vectors:,} different vectors of labels"
        )
        + ", over all runs.",
        f"A prediction tells at most {p.grid} bits of a row, those of all models together "
        f"{p.predictions:g}.",
        "Otherwise others are told of a single row at most as many bits as ten versions of it "
        "hold, over all runs, by a method's default exchange or one named above."
        if p.openings is None
        else f"Otherwise others are told at most {p.openings:g} bits of a row."
        if p.openings
        else "Otherwise nothing of a single row is told.",
        "Sums over rows are exact; there is no noise on them but where a method adds it.",
        "Privacy noise: "
        + ("any epsilon" if p.max_epsilon is None else f"epsilon up to {p.max_epsilon:g}")
        + " on a column in a run, "
        + (
            "and one release in all."
            if p.epsilon_total is None
            else f"{p.epsilon_total:g} in all, over columns, groups and runs."
        ),
    ]


def _names(names: tuple[str, ...], every: str, none: str) -> str:
    if ANY in names:
        return every
    return ", ".join(map(repr, names)) if names else none
