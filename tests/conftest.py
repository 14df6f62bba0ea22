import compileall
import contextlib
import gc
import logging
import os
import pathlib
import sys
import zlib

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # no test fails for a busy machine
settings.load_profile("untimed")

# Workers share the cores, and Ray's actors, whose results are to have the same bits, have one.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = os.environ.get(name) or "1"

# Where a machine keeps no compiled code, each worker and each process of a test would compile
# 150,000 lines first: half of the time of collecting.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Ray's workers run with niceness 15 by default: beside other tests they start 20 times slower.
os.environ.setdefault("RAY_worker_niceness", "0")

_NOT_SHOWN = (
    "%s: not shown on the page",
    "%s cannot be brought up to date",
    "the synthetic tables are not graded",
)

HERE = pathlib.Path(__file__).parent
gc.disable()  # until all is collected: a million objects, none of them garbage

sys.path[:0] = [str(HERE), str(HERE / "kit")]  # `oracles.fknn`; `resuming`


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """Mark what reads a data set: the README's command skips it where there is none."""
    for item in items:
        if "sources_with" in getattr(item, "fixturenames", ()):
            item.add_marker("data")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Have noise depend on the test alone, so that it passes always or never."""
    if item.get_closest_marker("fresh_noise"):
        return (yield)
    # NumPy comes with it, which reads the number of threads, above, when it is imported.
    from flwr_vertical.privacy import seeded_noise

    with seeded_noise(zlib.crc32(item.nodeid.encode())):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail where a part of a page or its grade failed, which ends no run, but for tests of that."""
    failed = []

    def note(record):
        if record.exc_info and record.msg in _NOT_SHOWN:
            failed.append(str(record.exc_info[1]))
        return True

    logging.getLogger("flwr_vertical").addFilter(note)
    try:
        outcome = yield
    finally:
        logging.getLogger("flwr_vertical").removeFilter(note)
    assert not failed or item.get_closest_marker("broken_page"), failed
    return outcome


def pytest_collection_finish():
    """Spare what was imported and collected, a million objects, all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_configure(config):
    """Compile once what each worker of a clean checkout would compile for itself."""
    if getattr(config.option, "numprocesses", None):
        for folder in ("flwr_vertical", "strategies", "apps", "simulations"):
            compileall.compile_dir(HERE.parent / folder, quiet=2)


@pytest.fixture(scope="session", autouse=True)
def _unflushed():
    """Do not wait for the disk: that thousands of small files are flushed has tests of its own."""
    from flwr_vertical.privacy_ledger import database

    assert database._SYNCHRONOUS == "EXTRA"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(database, "_SYNCHRONOUS", "OFF")
        yield


@pytest.fixture(scope="session")
def sources_with():
    """The folder of data sets, or a skip where it lacks one of the files that are asked for."""
    from flwr_vertical.errors import DataError
    from simulations.data import Sources

    def find(*files):
        sources = Sources.find()
        try:
            for file in files:
                sources.path(file)
        except DataError as error:
            pytest.skip(str(error))
        return sources

    return find


@pytest.fixture(scope="session")
def ray_cluster():
    """One local Ray for all tests that need one; it believes in four CPUs and two GPUs."""
    ray = pytest.importorskip("ray")
    from flwr_vertical.grids.ray import start_ray

    start_ray("local", num_cpus=4, num_gpus=2)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def drawing():
    """Where figures of pages are drawn: elsewhere they are empty, as each takes half a second."""
    from flwr_vertical.pages import figures

    real = figures.to_svg

    @contextlib.contextmanager
    def draw():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "to_svg", real)
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "to_svg", lambda *_, **__: figures.Drawing("<svg></svg>"))
        yield draw


@pytest.fixture
def drawn(drawing):
    """For tests of the figures themselves, of which each kind has one."""
    with drawing():
        yield


@pytest.fixture
def ray_in_process(monkeypatch):
    """Engine "ray" in this process: all of `RayGrid`, with pickled messages, and no actor."""
    pytest.importorskip("ray")
    from ray_in_process import InProcessRay

    ray = InProcessRay()
    monkeypatch.setattr("flwr_vertical.grids.ray.require", lambda package, what: ray)
    return ray
