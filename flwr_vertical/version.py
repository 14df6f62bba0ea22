"""The version of this package, where every module can import it."""

__version__ = "0.2.0"
