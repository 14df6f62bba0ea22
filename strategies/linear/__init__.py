"""What linear methods share: tables as matrices, labels, moments, masked means, predictions."""
