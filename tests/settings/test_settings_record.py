"""Frozen records of settings: what their fields take, refuse and document."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from flwr_vertical.errors import ConfigError
from flwr_vertical.server import RunOptions, RunSettings
from flwr_vertical.settings import Settings, setting, settings_of


class Trees(Settings):
    """Grow trees.

    Notes
    -----
    Tall ones.
    """

    kind: ClassVar[str] = "forest"
    count: int = setting(5, "How many.", at_least=1)
    rate: float = setting(0.1, "How fast.", above=0, below=1)
    shape: str = setting("round", "Of the crown.", choices=("round", "flat"))
    bark: str | None = setting("thick", "Around it.", choices=("thick", "thin"))
    evergreen: bool = setting(True, "Whether leaves stay.")
    heights: tuple[float, ...] = setting((), "In metres.", at_least=0)
    names: Sequence[str] | None = setting(None, "Of each.")
    height: float | None = setting(None, "Of all.", flower_default=2.0)
    secret: Any = setting(None, "Not for Flower.", on_flower=False)


class Orchard(Trees):
    """Trees with fruit."""

    fruit: str = "apple"

    def check(self):
        if self.fruit == "olive" and self.evergreen is False:
            raise ConfigError("olives are evergreen")


def test_positions_names_defaults_and_types():
    assert Trees(7, 0.5).count == 7
    made = Orchard(count=np.int64(3), rate=np.float32(0.5), heights="1, 2.5", names=["a", "b"])
    assert (made.count, type(made.count), made.rate) == (3, int, 0.5)
    assert (made.heights, made.names, made.fruit) == ((1.0, 2.5), ("a", "b"), "apple")
    assert Trees(rate=0.5) == Trees(rate=0.5) != Trees()
    assert Trees(bark="none").bark is None
    assert Trees(bark=None).bark is None
    assert Trees(height="").height is None
    assert Trees(height=3).height == 3.0
    assert "count=7" in repr(Trees(7))
    assert dataclasses.replace(made, count=4).heights == (1.0, 2.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.count = 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "count must be an integer of at least 1, got 0"),
        ({"count": True}, "count must be an integer of at least 1, got True"),
        ({"count": 2.0}, "count must be an integer"),
        ({"count": "2"}, "count must be an integer of at least 1, got '2'"),
        ({"count": None}, "count must be an integer of at least 1, got None"),
        ({"rate": 1}, "rate must be a number above 0 and below 1, got 1"),
        ({"rate": float("nan")}, "rate must be a number above 0 and below 1, got nan"),
        ({"height": float("inf")}, "height must be a number or none, got inf"),
        ({"shape": "square"}, r"unknown shape 'square'; expected one of \['round', 'flat'\]"),
        ({"shape": 3}, "unknown shape 3"),
        ({"evergreen": "false"}, "evergreen must be true or false, got 'false'"),
        ({"evergreen": 1}, "evergreen must be true or false, got 1"),
        ({"heights": "1,x"}, "heights must be numbers with commas, got '1,x'"),
        ({"heights": [1, -1]}, "heights must be numbers of at least 0"),
        ({"names": 5}, "names must be texts or none, got 5"),
        ({"fruit": "olive", "evergreen": False}, "olives are evergreen"),
    ],
)
def test_what_cannot_be_used_is_named(given, said):
    with pytest.raises(ConfigError, match=said):
        Orchard(**given)


def test_plain_values_make_the_record_again():
    made = Trees(heights=[1, 2], names="a,b", bark=None)
    plain = {s.key: s.to_plain(getattr(made, s.name)) for s in settings_of(Trees) if s.on_flower}
    assert plain["heights"] == "1.0,2.0"
    assert plain["bark"] == "none"
    assert all(type(value) in (int, float, bool, str) for value in plain.values())
    assert Trees.from_config(plain) == made


def test_a_run_config_has_the_keys_and_defaults_of_the_record():
    defaults = Trees.config_defaults("trees.")
    assert defaults["trees.names"] == ""
    assert defaults["trees.height"] == 2.0
    assert "trees.secret" not in defaults
    assert Trees.from_config(defaults | {"seed": 3}, "trees.").height == 2.0


def test_the_documentation_is_that_of_the_fields():
    text = Orchard.__doc__
    assert text.startswith("Trees with fruit.\n\nParameters\n----------\ncount : int, default 5\n")
    assert "    How many. (at least 1)" in text
    assert 'bark : {"thick", "thin"} or None, default "thick"' in text
    before, after = Trees.__doc__.index("height : "), Trees.__doc__.index("Notes\n-----")
    assert before < after


def test_a_class_may_write_its_own_constructor():
    class Plain(Settings):
        def __init__(self, k):
            self.k = k

    class Plainer(Plain):
        pass

    assert (Plain(3).k, Plainer(4).k) == (3, 4)


def test_a_misspelt_setting_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match=r"Orchard has no setting 'fruits' \(did you mean 'fruit'"):
        Orchard(fruits="pear")
    assert list(inspect.signature(Orchard).parameters)[:2] == ["count", "rate"]


def test_names_with_another_meaning_are_no_settings():
    with pytest.raises(TypeError, match="check cannot be a setting"):
        type("Bad", (Settings,), {"__annotations__": {"check": int}, "check": 3})


def test_options_of_a_run_are_the_fields_of_its_settings():
    assert set(RunOptions.__annotations__) == {s.name for s in settings_of(RunSettings)}


def test_settings_of_a_run_from_a_run_config():
    run = RunSettings.from_config(
        {"aggregation": "ckks", "min-nodes": 0, "parties": "a, b", "normalise-ids": "strip"}
    )
    assert (run.aggregation, run.min_nodes, run.parties) == ("ckks", None, ("a", "b"))
    assert run.normalise_ids == ("strip",)
    assert RunSettings.of(run, {"seed": 3}).parties == ("a", "b")
    assert RunSettings.from_config({"parties": ""}).parties is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"aggregation": "open"}, r"unknown aggregation 'open'; expected one of \['plain'"),
        ({"align_rows": "all"}, "unknown align_rows 'all'; expected one of"),
        ({"normalise_ids": "trim"}, "unknown normalisation of IDs"),
        ({"retries": -1}, "retries must be an integer of at least 0, got -1"),
        ({"timeout": "soon"}, "timeout must be a number above 0, got 'soon'"),
        ({"min_nodes": -1}, "min_nodes must be an integer of at least 1 or none, got -1"),
        ({"resume": True}, "resume=True needs checkpoint"),
    ],
)
def test_settings_of_a_run_are_checked(given, said):
    with pytest.raises(ConfigError, match=said):
        RunSettings.of(None, given)


def test_a_misspelt_setting_of_a_run():
    with pytest.raises(TypeError, match=r"no setting 'agregation' \(did you mean 'aggregation'"):
        RunSettings.of(None, {"agregation": "plain"})


def test_a_repr_is_a_call_with_what_differs_from_the_defaults():
    assert repr(Trees()) == "Trees()"
    assert repr(Trees(rate=0.5)) == "Trees(rate=0.5)"
    assert eval(repr(Trees(7, 0.5)), {"Trees": Trees}) == Trees(7, 0.5)
    assert repr(Trees(bark="none")) == "Trees(bark=None)"


def test_a_removed_setting_is_answered_with_what_to_use_now():
    class Trimmed(Settings):
        """A record that lost a setting."""

        removed = {"exchange": "use the strategy 'iterations'"}  # noqa: RUF012
        height: float = setting(1.0, "Height.", above=0)

    said = r"no setting 'exchange' \(it was removed: use the strategy 'iterations'\)"
    with pytest.raises(TypeError, match=said):
        Trimmed(exchange="sums")
    with pytest.raises(ConfigError, match=said):
        Trimmed().set_params(exchange="sums")
