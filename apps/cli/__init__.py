"""The command ``flwr-vertical``: one module for each subcommand."""
