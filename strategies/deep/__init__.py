"""Networks in PyTorch, which strategies import where they need them."""
