"""A split model trained in a loop, in NumPy and in PyTorch, for runs that break off."""

import numpy as np
import pandas as pd
from resuming import Place

from flwr_vertical import Party, Strategy, Summands, step

STEPS, HIDDEN, BATCH = 23, 3, 8


class Momentum:
    """Gradient descent with momentum: an object that packs itself."""

    def __init__(self, shape):
        self.w = np.full(shape, 0.1)
        self.velocity = np.zeros(shape)

    def move(self, gradient):
        self.velocity = 0.9 * self.velocity - 0.05 * gradient
        self.w = self.w + self.velocity

    def pack(self):
        return {"w": self.w, "velocity": self.velocity}

    def unpack(self, tree):
        self.w, self.velocity = tree["w"], tree["velocity"]


class NumpyHalf(Party):
    @step
    def prepare(self):
        self._layer().w *= 2.0
        self.state["taken"] = 0
        return {}

    @step
    def forward(self, batch):
        self.state["taken"] = int(self.state["taken"]) + 1
        # Rows left out at random: whoever takes a step again must leave out the same.
        self.state["kept"] = self.rng.random((len(batch), 1)) > 0.2
        rows = self._rows(batch) * self.state["kept"]
        return Summands({"hidden": rows @ self.live.get("layer", self._new).w})

    @step
    def backward(self, batch, gradient):
        self._layer().move((self._rows(batch) * self.state["kept"]).T @ gradient)
        self.live.get("log", list).append(float(np.abs(gradient).sum()))
        return {}

    @step
    def finish(self):
        layer = self.live.get("layer", self._new, changes=False)
        log = self.live.get("log", list, changes=False)
        self.save_output(pd.DataFrame({"w": layer.w.ravel()}))
        return {"taken": self.state["taken"], "logged": len(log), "sum": float(sum(log))}

    def _new(self):
        return Momentum((self.table.frame.shape[1], HIDDEN))

    def _layer(self):
        return self.live.get("layer", self._new)

    def _rows(self, batch):
        aligned = np.zeros((self.n_samples, self.table.frame.shape[1]))
        aligned[self.positions] = self.table.frame.to_numpy(dtype=float)
        return aligned[batch]


class TorchHalf(NumpyHalf):
    @step
    def prepare(self):
        self._net()
        self.state["taken"] = 0
        return {}

    @step
    def forward(self, batch):
        self.state["taken"] = int(self.state["taken"]) + 1
        return Summands({"hidden": self._out(batch).detach().numpy().astype(float)})

    @step
    def backward(self, batch, gradient):
        import torch

        optimiser, schedule = self._optimiser(), self.live.get("schedule", self._new_schedule)
        optimiser.zero_grad()
        self._out(batch).backward(torch.tensor(gradient, dtype=torch.float32))
        optimiser.step()
        schedule.step()
        self.live.get("log", list).append(float(np.abs(gradient).sum()))
        return {}

    @step
    def finish(self):
        net, log = self._net(), self.live.get("log", list, changes=False)
        flat = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
        self.save_output(pd.DataFrame({"w": flat}))
        return {"taken": self.state["taken"], "logged": len(log), "sum": float(sum(log))}

    def _out(self, batch):
        import torch

        return self._net()(torch.as_tensor(self._rows(batch), dtype=torch.float32))

    def _net(self):
        return self.live.get("net", self._new_net)

    def _optimiser(self):
        return self.live.get("optimiser", self._new_optimiser)

    def _new_net(self):
        import torch

        columns = self.table.frame.shape[1]
        net = torch.nn.Sequential(
            torch.nn.Linear(columns, 5), torch.nn.ReLU(), torch.nn.Linear(5, HIDDEN)
        )
        # Parties share a process here: the global generator would give who comes first the first.
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.normal_(std=0.5, generator=generator)
        return net

    def _new_optimiser(self):
        import torch

        return torch.optim.Adam(self._net().parameters(), lr=0.01)

    def _new_schedule(self):
        import torch

        return torch.optim.lr_scheduler.StepLR(self._optimiser(), step_size=5, gamma=0.5)


class Trainer(Strategy):
    """Fits labels by a hidden sum over parties; the head is the server's."""

    name = "trainer"
    party = NumpyHalf

    def __init__(self, steps=STEPS, loops=1, spend=False):
        self.steps, self.loops, self.spend = steps, loops, spend

    def run(self, federation, alignment, result, progress):
        federation.call("prepare")
        labels = np.nan_to_num(federation.labels)
        head = Momentum(HIDDEN)

        def body(i):
            batch = federation.rng.choice(len(labels), BATCH, replace=False)
            hidden = federation.sum("forward", {"batch": batch})["hidden"]
            error = hidden @ head.w - labels[batch]
            federation.call(
                "backward", {"batch": batch, "gradient": np.outer(error, head.w) / BATCH}
            )
            head.move(hidden.T @ error / BATCH)
            result.history.append({"step": i, "loss": float(error @ error)})
            if self.spend:
                federation.ledger.spend("bank", 0.5, f"step {i}")

        for _ in range(self.loops):
            federation.loop(self.steps, body, {"head": head, "history": result.history})
            federation.call("finish")
        result.model = head.w
        result.metrics["last"] = float(federation.rng.random())
        result.party_metrics = federation.call("finish")


class TorchTrainer(Trainer):
    party = TorchHalf


class TrainingPlace(Place):
    """Disks of server and parties on which a `Trainer` runs."""

    def __init__(self, folder, mode="masked", strategy=Trainer, every=5):
        super().__init__(folder, "rounds", mode)
        self.strategy = strategy
        self.start["checkpoint_every"] = every

    def plain(self):
        """Run without checkpoints."""
        every = self.start.pop("checkpoint_every")
        try:
            return self.run(checkpoint=False)
        finally:
            self.start["checkpoint_every"] = every

    def beside(self, name):
        """Names of the files of a party, without its own prefix."""
        prefix = f"{name}.party"
        folder = self.checkpoint(name).parent
        return sorted(p.name.removeprefix(prefix) for p in folder.glob("*"))


def assert_same_model(found, expected):
    """Compare two runs to the bit."""
    np.testing.assert_array_equal(found.result.model, expected.result.model)
    assert found.result.history == expected.result.history
    assert found.result.metrics == expected.result.metrics
    assert found.result.party_metrics == expected.result.party_metrics
    assert set(found.tables) == set(expected.tables) == {"bank", "court"}
    for name, table in expected.tables.items():
        np.testing.assert_array_equal(found.tables[name].to_numpy(), table.to_numpy())
