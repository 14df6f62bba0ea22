"""The Flower app: what ``flwr run .`` starts on the server and on the nodes."""
