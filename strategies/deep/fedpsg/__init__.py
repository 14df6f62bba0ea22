"""The networks of FedPSG-AR: generators, discriminators, losses, and both halves of a step."""
