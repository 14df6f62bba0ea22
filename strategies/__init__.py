"""The methods: one folder per method, with a server half, a party half and pure numerics."""

from flwr_vertical.registry import register_strategy

BUILTIN = {
    "aim": "strategies.marginals:AIM",
    "complete-case": "strategies.least_squares:CompleteCase",
    "cox": "strategies.cox:Cox",
    "evcds": "strategies.copula:EVCDS",
    "explore": "strategies.explore:Explore",
    "false-vfl": "strategies.false_vfl:FalseVFL",
    "fedhssl": "strategies.split:FedHSSL",
    "fedpsg-ar": "strategies.fedpsg:FedPSGAR",
    "fknn": "strategies.fknn:FKNN",
    "forest": "strategies.forest:VerticalForest",
    "gbdt": "strategies.trees:VerticalGBDT",
    "glm": "strategies.glm:VerticalGLM",
    "glm-admm": "strategies.glm_admm:GLMADMM",
    "ievcds": "strategies.copula:IEVCDS",
    "joint-normal": "strategies.normal:JointNormal",
    "laser-vfl": "strategies.split:LaserVFL",
    "lda": "strategies.lda:LDA",
    "max": "strategies.baselines:Max",
    "mean": "strategies.baselines:Mean",
    "mean-impute": "strategies.least_squares:MeanImpute",
    "min": "strategies.baselines:Min",
    "most-frequent": "strategies.baselines:MostFrequent",
    "mst": "strategies.marginals:MST",
    "pipeline": "strategies.pipeline:Pipeline",
    "plug-vfl": "strategies.split:PlugVFL",
    "predict": "strategies.predict:Predict",
    "scorecard": "strategies.scorecard:Scorecard",
    "single": "strategies.least_squares:Single",
    "vanilla-vfl": "strategies.split:VanillaVFL",
    "vcds": "strategies.copula:VCDS",
    "vertigan": "strategies.vertigan:VertiGAN",
    "vfem": "strategies.vfem:VFEM",
    "vfem-iterations": "strategies.vfem_iterations:VFEMIterations",
    "svm": "strategies.svm:VerticalSVM",
    "final-net": "strategies.split:FinalNet",
}


def register_all() -> None:
    """Make the built-in strategies known by name where the package is not installed.

    A Flower app bundle carries the code but no entry points.
    """
    for name, target in BUILTIN.items():
        register_strategy(name, target)
