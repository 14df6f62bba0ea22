"""Deep methods: networks that are trained in many rounds, on PyTorch (extra ``torch``)."""
