"""Live objects: what stays in a process, and how it is written down."""

import collections

import numpy as np
import pytest

from flwr_vertical import Federation, LocalGrid, MemoryStorage, Party, party_app, step
from flwr_vertical.errors import CodecError, PartyError, ProtocolError, StateLostError
from flwr_vertical.node.live_objects import LiveObjects
from flwr_vertical.protocol.disk import read_frame, replace_file
from flwr_vertical.protocol.objects import pack_object, unpack_object
from flwr_vertical.protocol.trees import pack_tree, unpack_tree


def through(tree, path):
    """What comes back from a file."""
    replace_file(path, pack_tree({"a": 1}, tree), "a tree")
    with path.open("rb") as file:
        meta, found = unpack_tree(read_frame(file, path))
        assert read_frame(file, path) is None
    assert meta == {"a": 1}
    return found


def test_a_tree_comes_back_as_it_was(tmp_path):
    tree = {
        "plain": [None, True, 1, 2**200, -0.0, 1e-310, float("inf"), "grüß", b"\x00raw"],
        "tuple": (1, (2.5, [])),
        3: {None: "key", (1, "b"): {}},
        "scalars": [np.float32(0.1), np.int8(-3), np.bool_(True)],
    }
    found = through(tree, tmp_path / "t")
    assert repr(found) == repr(tree)
    assert np.isnan(through([float("nan")], tmp_path / "t")[0])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2].T,
        np.array(3.5),
        np.zeros((0, 4), dtype=np.float32),
        np.array(["a", "grüß"]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
        np.arange(3, dtype=">f8"),
        np.array([1 + 2j]),
        np.array([np.nan, -0.0]),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_arrays_keep_bytes_type_and_shape(tmp_path, array):
    found = through({"x": array}, tmp_path / "t")["x"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable
    assert found.flags.owndata or found.base.flags.owndata


def test_large_arrays_are_not_copied_on_the_way_to_the_file():
    array = np.zeros(1_000_000)
    *_, piece = pack_tree({}, {"x": array})
    array[0] = 1.0
    assert np.frombuffer(piece, dtype=float)[0] == 1.0
    assert np.shares_memory(np.frombuffer(piece, dtype=float), array)


def test_a_value_of_another_type_is_named():
    with pytest.raises(CodecError, match=r"\['a'\]\[1\] is a set"):
        pack_tree({}, {"a": [1, {2}]})
    with pytest.raises(CodecError, match="dtype object"):
        pack_tree({}, {"a": np.array([object()])})


def test_tensors_of_any_type(tmp_path):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64):
        tensor = torch.arange(6).reshape(2, 3).to(dtype)
        found = through([tensor.T, torch.tensor(1, dtype=dtype)], tmp_path / "t")
        assert found[0].dtype == dtype
        assert torch.equal(found[0], tensor.T)
        assert found[1].shape == ()
    parameter = torch.nn.Parameter(torch.ones(2))
    assert torch.equal(through(parameter, tmp_path / "t"), torch.ones(2))
    with pytest.raises(CodecError, match="tensor without raw bytes"):
        pack_tree({}, {"s": torch.eye(3).to_sparse()})


class Own:
    def __init__(self):
        self.value = 1

    def pack(self):
        return {"value": self.value}

    def unpack(self, tree):
        self.value = tree["value"]


def test_objects_of_known_kinds():
    own = Own()
    own.value = 7
    assert unpack_object("o", Own(), pack_object("o", own)).value == 7
    rng, other = np.random.default_rng(3), np.random.default_rng(4)
    rng.random(5)
    unpack_object("rng", other, pack_object("rng", rng))
    assert other.random() == rng.random()
    rows = [1, 2]
    assert unpack_object("rows", rows, [3]) is rows
    assert rows == [3]
    table = collections.OrderedDict(a=1)
    assert unpack_object("table", table, {"b": 2}) == {"b": 2}
    with pytest.raises(CodecError, match="'x' is a set, which nobody here can write down"):
        pack_object("x", set())
    with pytest.raises(ProtocolError, match=r"'rng' .* cannot take up"):
        unpack_object("rng", rng, {"state": 3})


def trained(torch, steps, net=None, optimiser=None, generator=None):
    if net is None:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        optimiser = torch.optim.AdamW(net.parameters(), lr=0.1, amsgrad=True)
        generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimiser.zero_grad()
        net(torch.randn(8, 3, generator=generator)).pow(2).sum().backward()
        optimiser.step()
    return net, optimiser, generator


def test_torch_goes_on_to_the_bit(tmp_path):
    torch = pytest.importorskip("torch")
    whole, *_ = trained(torch, 6)
    first = trained(torch, 3)
    names = ("net", "optimiser", "generator")
    tree = through(
        {n: pack_object(n, o) for n, o in zip(names, first, strict=True)}, tmp_path / "t"
    )
    second = trained(torch, 0)
    for name, made in zip(names, second, strict=True):
        unpack_object(name, made, tree[name])
    net, *_ = trained(torch, 3, *second)
    for key, value in whole.state_dict().items():
        assert torch.equal(net.state_dict()[key], value), key
    with pytest.raises(ProtocolError, match=r"'net' .Linear. cannot take up"):
        unpack_object("net", torch.nn.Linear(2, 2), tree["net"])


def begun(live, version="", load=lambda version: None):
    live.begin(version, load, "party 'bank'")
    return live


def test_a_version_is_new_after_each_step_that_may_change_something():
    live = begun(LiveObjects())
    assert live.end() is None
    live.get("x", dict)["a"] = 1
    first = live.end()
    assert begun(live, first).get("x", changes=False) == {"a": 1}
    assert live.end() is None
    begun(live, first).get("x")
    second = live.end()
    assert second not in (None, first)
    begun(live, second).drop("x")
    assert "x" not in live
    third = live.end()
    begun(live, third).put("y", [1])
    assert [*live] == ["y"]
    assert len({first, second, third, live.end()}) == 4


def test_other_versions_than_the_one_here_are_never_used():
    live = begun(LiveObjects())
    live.get("x", dict)["a"] = 1
    first = live.end()
    for other in (LiveObjects(), live):  # another process, and one that lags behind
        with pytest.raises(StateLostError, match="party 'bank': the live objects"):
            begun(other, "0123").get("x", dict)
        with pytest.raises(StateLostError):
            begun(other, "0123").put("x", {})
    begun(live, first).get("x")  # a step that does not end
    with pytest.raises(StateLostError):
        begun(live, first).get("x", dict)


def test_what_the_disk_holds_is_taken_up_by_what_make_makes():
    asked = []

    def load(version):
        asked.append(version)
        return {"own": {"value": 5}, "rows": [1, 2]}

    live = begun(LiveObjects(), "abc", load)
    assert sorted(live) == ["own", "rows"]
    assert live.get("own", Own).value == 5
    assert live.pack() == {"own": {"value": 5}, "rows": [1, 2]}  # also what nobody asked for
    with pytest.raises(ProtocolError, match=r"'rows' .dict. cannot take up"):
        live.get("rows", dict)
    with pytest.raises(KeyError, match="made anew in this process: pass make"):
        live.get("rows")
    with pytest.raises(KeyError, match="no live object 'z'"):
        live.get("z")
    assert asked == ["abc"]


def test_an_object_that_cannot_be_written_down_is_refused_at_once():
    live = begun(LiveObjects())
    with pytest.raises(CodecError, match="'x'"):
        live.get("x", object)
    with pytest.raises(CodecError, match="'x'"):
        live.put("x", object())
    assert live.end() is None


def test_a_new_run_begins_without_the_objects_of_the_last():
    class Counter(Party):
        @step
        def count(self):
            box = self.live.get("box", lambda: {"n": 0})
            box["n"] += 1
            return dict(box)

    with LocalGrid(party_app(Counter, storage=MemoryStorage({})), [{"party": "p"}]) as grid:
        for _ in range(2):
            federation = Federation(grid, aggregation="plain")
            federation.open()
            assert [federation.call("count")["p"]["n"] for _ in range(3)] == [1, 2, 3]
        grid.contexts[1].state["flwr-vertical.state.values"]["node.live"] = "another"
        with pytest.raises(
            PartyError, match=r"'p' .* live objects that its last step left are lost"
        ):
            federation.call("count")


def test_the_server_may_not_set_the_version():
    class Bare(Party):
        @step
        def go(self):
            return {}

    with LocalGrid(party_app(Bare, storage=MemoryStorage({})), [{"party": "p"}]) as grid:
        federation = Federation(grid, aggregation="plain")
        federation.open()
        federation.update("p", {"node.live": "abc"})
        with pytest.raises(PartyError, match=r"may not set \['node.live'\]"):
            federation.call("go")
