"""What the page of attacks says of them."""

TITLES = {
    "targets": "What is found beyond the outputs",
    "by_strategy": "The most that any attack finds at default settings (shares of others' cells)",
    "consented": "Exchanges that need every node's consent",
    "rough": "The same, roughly: R squared of others' columns, half of the samples known",
    "labels": "Labels at a party: R squared or AUC from its own columns, and what messages add",
    "routed": "Trees: what sides of splits and gains tell",
    "deviating": "A server that deviates: other messages, and how they end",
    "by_attack": "The most that each attack finds (labels: R squared or AUC gained)",
    "several": "Several runs, and outputs alone",
    "smallest_sets": "Rows of the smallest set whose sums a run opens",
}
INTRODUCTION = (
    "Every built-in strategy is run and recorded. Then each node's view (all messages that it got "
    "and sent, what the server works out of them, its own table or labels) is attacked by methods "
    "that know no strategy. A cell counts as recovered within a thousandth of its column's "
    "standard deviation, where the attacker is given the column's origin and unit; luck and a "
    "column's commonest value do not count. “Outputs alone” is what the same attacks find in the "
    "result (coefficients, predictions, sums over groups of rows) without any message."
)
ATTACKS_IN_WORDS = {
    "single vectors": "compares every number told per sample with every column",
    "span, half of the rows known": "knows half of all rows, learns columns as combinations of "
    "vectors, and guesses the other half: the strongest linear attack",
    "0/1 columns in the span": "finds vectors of two values in the span, from the vectors alone "
    "(`b b = b` is linear in products)",
    "known coefficients": "solves “fits = columns times coefficients” for columns",
    "moments and span": "turns a basis of the span into columns, by second moments and products "
    "with labels",
    "projections on labels": "projects columns on the labels of each group of rows",
    "subset sums": "finds the rows of the rarer of two values from their sum of labels: up to "
    "three rows in any group, any number in groups of at most 34 rows",
    "atoms of row sets": "combines opened sums to single rows (A+B, A+i, B)",
    "distances": "double centring, also of rows scaled and shifted; differences of one column; the "
    "table in an unknown order",
    "pads used twice": "subtracts and adds numbers modulo $2^{64}$ that may share a mask",
    "labels": "a party's guesses of labels from all it received beside its own columns, less those "
    "from its columns alone",
}

NOTES = {
    "by_strategy": "Masked: the largest of runs with 2, 3 and 5 parties; `plain` and `ckks`: with "
    "3. In `plain` mode the server sees every party's term of every sum, by definition.",
    "consented": "These open numbers of single samples, so each node must agree in its own "
    "configuration. They also show that the attacks find what is there. Not attacked: `fknn` with "
    "`weights=distance`, which tells parties relative distances by definition.",
    "rough": "The table above counts cells that are found to a thousandth of a standard "
    "deviation. Sums of what networks make of columns tell these less exactly: here a linear "
    "regression on all numbers of a sample, by who knows half of the samples, on average over "
    "others' columns. `python -m simulations.false_vfl.attacks` has `false-vfl` trained for "
    "longer, by how many parties hold a sample.",
    "deviating": "At each message of a run the server sends every other one that it could: each "
    "step that the node has, also of other modes; each argument missing, of another type, shape or "
    "value; each key of the node's state; earlier messages, old numbers, and what one party alone "
    "is told (`simulations/attacks/deviating.py`). By protocol: refused before anything is "
    "computed. By another rule: refused by the step, the ledger or the policy. Raw error: the step "
    "failed. Each of these ends the run at that node and is in its ledger. Answered: mostly values "
    "within their bounds and optional arguments; other messages are masked by other masks. Cells: "
    "of the node's table, in an answer as they are.",
    "by_attack": "",
    "labels": "A gain counts where predictions out of the sample are nearer by three standard "
    "errors. Of 6,000 samples that finds a message that explains 1 % of what a party's own "
    "columns leave of the labels, of the 420 of the other tables some 10 %.",
    "routed": "Trees tell the server on which side of each split a row is, without a consent: "
    "these bits are counted by each node, and `policy.openings` caps them. Here 40 trees of four "
    "levels on 420 samples with labels 0 and 1. Server: bits of a cell that follow from the sides, "
    "of those that its code has; cells whose code is known; with open histograms, which need a "
    "consent, codes found by least squares, as the server knows the gradients; cells that the "
    "attacks above find. A party: cells, as above, since rows that share nodes are on one side of "
    "others' columns; AUC of guesses of labels from the nodes that rows are in, by an eigenvector "
    "or with 50 labels known, beside the model's own AUC in the sample. The arbiter: how often it "
    "sees the sign of a sum of gradients right, and how what it sees correlates with that sum, "
    "beside the same with signs drawn at random.",
    "several": "These runs are simulated, in memory, where the rules on row sets, vectors and "
    "bits hold within a run. Real nodes count over runs, and refuse these "
    "(`tests/attacks/test_attacks_configuration.py`). Predictions are an output: few flags follow "
    "from a prediction and known coefficients, and the grid bounds how many bits a prediction "
    "tells.",
    "smallest_sets": "",
    "targets": "Points of synthetic tables: how much oftener the attacks of "
    "`flwr_vertical.grading.risks` succeed with members than with others, in percent, over six "
    "runs of 400 members.",
}
