"""What a node takes part in: its policy, and what a run asks of it."""
