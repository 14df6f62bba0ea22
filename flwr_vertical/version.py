"""The version of this package, where every module can import it."""

__version__ = "0.1.0"
