"""What methods with neural networks share."""
