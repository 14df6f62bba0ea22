"""The earlier name of `Predict`."""

from typing import ClassVar

from strategies.predict.strategy import Predict


class VFEMPredict(Predict):
    """`Predict` under its earlier name; new code uses that."""

    name: ClassVar[str] = "vfem-predict"
