"""Small local generators of tables: baselines of the study, no part of the library.

Written from the papers, in PyTorch, all trained by `base.LocalGenerator.fit`. They are smaller than
the authors' (widths and steps are in each module), so their numbers are those of these networks.
"""

from simulations.fedpsg.generators.base import LocalGenerator
from simulations.fedpsg.generators.ctgan import CTGAN
from simulations.fedpsg.generators.tabddpm import TabDDPM
from simulations.fedpsg.generators.tablegan import TableGAN
from simulations.fedpsg.generators.tvae import TVAE

GENERATORS: dict[str, type[LocalGenerator]] = {
    kind.__name__: kind for kind in (CTGAN, TableGAN, TVAE, TabDDPM)
}
