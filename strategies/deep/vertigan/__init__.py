"""The networks of VertiGAN; PyTorch alone, no Flower."""
