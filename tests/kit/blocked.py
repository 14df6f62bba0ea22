"""Packages that cannot be imported, as on a machine that does not have them."""

import importlib.abc


class Absent(importlib.abc.MetaPathFinder):
    """Answers like Python where a package is not installed."""

    def __init__(self, packages):
        self.packages = set(packages)

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return
