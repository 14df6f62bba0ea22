"""A page that shows a run while it lasts, served by the server's process to its own machine."""
