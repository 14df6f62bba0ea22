"""Stage 2 of FedPSG-AR: vertical imputation by generative adversarial networks, in PyTorch."""
