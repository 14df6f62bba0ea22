"""Live channels: rounds of milliseconds on Flower's own runtimes, for any Flower app."""

from flwr_vertical.channel.app import ChannelClientApp
from flwr_vertical.channel.client import ChannelError
from flwr_vertical.channel.grid import ChannelGrid

__all__ = ["ChannelClientApp", "ChannelError", "ChannelGrid"]
