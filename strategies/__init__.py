"""The methods: one folder per method, with a server half, a party half and pure numerics."""

from flwr_vertical.registry import register_strategy

BUILTIN = {
    "complete-case": "strategies.least_squares:CompleteCase",
    "evcds": "strategies.copula:EVCDS",
    "false-vfl": "strategies.deep:FalseVFL",
    "false-vfl-predict": "strategies.deep:FalseVFLPredict",
    "fedhssl": "strategies.deep:FedHSSL",
    "fedpsg-ar": "strategies.fedpsg:FedPSGAR",
    "fknn": "strategies.fknn:FKNN",
    "forest": "strategies.trees:VerticalForest",
    "gbdt": "strategies.trees:VerticalGBDT",
    "gbdt-predict": "strategies.trees:TreesPredict",
    "forest-predict": "strategies.trees:ForestPredict",
    "glm": "strategies.glm:VerticalGLM",
    "ievcds": "strategies.copula:IEVCDS",
    "laser-vfl": "strategies.deep:LaserVFL",
    "max": "strategies.baselines:Max",
    "mean": "strategies.baselines:Mean",
    "mean-impute": "strategies.least_squares:MeanImpute",
    "min": "strategies.baselines:Min",
    "most-frequent": "strategies.baselines:MostFrequent",
    "plug-vfl": "strategies.deep:PlugVFL",
    "predict": "strategies.predict:Predict",
    "single": "strategies.least_squares:Single",
    "split-predict": "strategies.deep:SplitPredict",
    "vanilla-vfl": "strategies.deep:VanillaVFL",
    "vcds": "strategies.copula:VCDS",
    "vertigan": "strategies.vertigan:VertiGAN",
    "vfem": "strategies.vfem:VFEM",
    "vfem-predict": "strategies.vfem:VFEMPredict",
    "lr": "strategies.classifiers:VerticalLR",
    "svm": "strategies.classifiers:VerticalSVM",
    "final-net": "strategies.deep:FinalNet",
}


def register_all() -> None:
    """Make the built-in strategies known by name where the package is not installed.

    A Flower app bundle carries the code but no entry points.
    """
    for name, target in BUILTIN.items():
        register_strategy(name, target)
