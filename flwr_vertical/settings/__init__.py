"""Settings as frozen records, and how a run config is read."""

from flwr_vertical.settings.field import Setting, setting
from flwr_vertical.settings.record import Settings, settings_of
from flwr_vertical.settings.spelling import nearest

__all__ = ["Setting", "Settings", "nearest", "setting", "settings_of"]
