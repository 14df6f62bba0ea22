"""Reports of runs: the page of a run, that of a party, and what a notebook shows."""
