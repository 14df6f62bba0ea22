"""The scalars of a fit that standard errors and figures of merit are made of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Sums of squares and counts of a fit."""

    n_samples: int  # Samples used; coefficients that the data tell, with the intercept
    n_parameters: int  # Samples used; coefficients that the data tell, with the intercept
    rss: float  # Sums of squares of the residuals, and of the labels about `level`; standardised
    tss: float  # Sums of squares of the residuals, and of the labels about `level`; standardised
    level: float  # Mean of the standardised labels used; 0 without an intercept
    has_intercept: bool  # Whether there is one

    @property
    def sigma2(self) -> float:
        """Noise variance of standardised labels, unbiased."""
        return self.rss / max(self.n_samples - self.n_parameters, 1)

    @property
    def sigma2_ml(self) -> float:
        """Noise variance of standardised labels that maximises the likelihood."""
        return self.rss / self.n_samples

    def metrics(self, y_scale: float) -> dict[str, float]:
        """Figures of merit in label units; without an intercept, R squared is about zero."""
        ratio = (self.n_samples - self.has_intercept) / max(self.n_samples - self.n_parameters, 1)
        return {
            "r2": 1.0 - self.rss / self.tss,
            "adjusted_r2": 1.0 - ratio * self.rss / self.tss,
            "sigma2": self.sigma2 * y_scale**2,
            "n_samples": float(self.n_samples),
        }
