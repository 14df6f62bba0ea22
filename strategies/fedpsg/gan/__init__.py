"""Stage 2 of FedPSG-AR on the nodes: encodings, steps and training; networks are in `deep`."""
