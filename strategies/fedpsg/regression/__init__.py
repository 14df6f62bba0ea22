"""Stage 2 of FedPSG-AR by regressions: each missing attribute on all others, over parties."""
