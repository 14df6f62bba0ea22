"""Stage 2 of FedPSG-AR by networks: encodings, networks, steps and training."""
