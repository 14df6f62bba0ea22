"""The server's view of the parties: a strategy is a straight-line program over a `Federation`."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import RecordDict

from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol import private_sum
from flwr_vertical.protocol.binding import announce_own
from flwr_vertical.protocol.codec import Payload, decode, encode, entries, filled, override
from flwr_vertical.protocol.messages import ARBITER, ARGUMENTS, ENVELOPE, SUMS, VALUES, make_request
from flwr_vertical.protocol.objects import pack_object
from flwr_vertical.server.nodes import Nodes
from flwr_vertical.server.training_loop import SnapshotLoop


@dataclass(frozen=True)
class Total:
    """What `Federation.sum` returns."""

    # The sums over parties by name, or what the ``release`` step made of them
    values: dict[str, Any]
    # By party, the values that the step declared public
    public: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


class Federation(Nodes):
    """Parties reached over a Flower grid.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        How messages travel; any of this library's or Flower's own.
    run : RunSettings, optional
        Settings of the run, or some of them as keyword arguments: ``aggregation``,
        ``fraction_bits``, ``parties``, ``min_nodes``, ``patience``, ``timeout``, ``retries``.
    arbiter : type[Arbiter], default Arbiter
        The arbiter half of the strategy; its release steps run on the server itself unless the
        mode is ``ckks``.
    needs_arbiter : str, optional
        What of the strategy needs an arbiter, if anything does, whatever the mode.
    journal : Journal, optional
        Keeps what the parties answer; they keep checkpoints then. The rounds in a journal that
        is resumed are answered from it.
    protocol : str, optional
        `Protocol.of_strategy`, which nodes compare with their own.
    """

    def call(
        self,
        step: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        per_party: Mapping[str, Mapping[str, Any]] | None = None,
        parties: Sequence[str] | None = None,
        unkept: Collection[str] = (),
    ) -> dict[str, Payload]:
        """Have parties take a step; one round.

        Parameters
        ----------
        step : str
            Name of the step.
        arguments : Mapping[str, Any], optional
            Sent to every party.
        per_party : Mapping[str, Mapping[str, Any]], optional
            Further arguments for single parties.
        parties : Sequence[str], optional
            Who is called (default: all).
        unkept : Collection[str]
            Names of values that never go into a journal. Where the round is answered from one,
            they are absent (see `next_step` and `asking_again`).

        Returns
        -------
        dict[str, dict[str, Any]]
            Each party's answer.

        Raises
        ------
        PartyError
            If a party fails or does not answer; nothing is replaced by zero.
        """
        requests = self._requests(step, arguments, per_party, parties, mode="call")

        here: dict[str, Payload] = {}

        def live() -> tuple[Payload, dict[str, Payload]]:
            replies, _ = self._round(step, requests, mode="call")
            here.update((name, decode(reply, VALUES)) for name, reply in replies.items())
            kept = {
                name: {key: value for key, value in told.items() if key not in unkept}
                for name, told in here.items()
            }
            return {}, kept

        answers = self._record.once(step, requests, live)[1]
        return here if unkept and here else answers

    def keep(self, name: str, make: Callable[[], Payload]) -> Payload:
        """Compute values on the server, and journal them in place of the replies behind them.

        Parameters
        ----------
        name : str
            What it is. A resumed run has it from the journal, without calling `make`.
        make : Callable[[], dict[str, Any]]
            Works it out.
        """
        return self._record.once(name, {}, lambda: (make(), {}))[0]

    @property
    def course(self) -> int:
        """How many messages the strategy has sent to each party, wherever a run broke off."""
        return self._record.course

    @contextmanager
    def asking_again(self, course: int) -> Iterator[None]:
        """Ask again, within it, for what a journal does not keep.

        An unbroken run does not ask twice. So these rounds do not count in the course, by which
        parties draw random numbers: they draw what they drew when they were asked first.

        Parameters
        ----------
        course : int
            `course` before they were asked first.
        """
        here, self._record.course = self._record.course, course
        try:
            yield
        finally:
            self._record.course = here

    def next_step(self) -> str | None:
        """Return which step a resumed run takes next from its journal; None if it takes none."""
        return None if self._journal is None else self._journal.next_step()

    def sum(
        self,
        step: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        per_party: Mapping[str, Mapping[str, Any]] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        release: str | None = None,
        release_arguments: Mapping[str, Any] | None = None,
        scale: float | Mapping[str, float] | None = None,
    ) -> Total:
        """Have all parties take a step and learn the sum of what they return; one round.

        Totals come back in the type that the parties sent (float32 or float64), in every mode.

        Parameters
        ----------
        step, arguments, per_party
            As in `call`; the step returns `Summands`.
        shapes : Mapping[str, tuple[int, ...]], optional
            Expected shape of each summand.
        release : str, optional
            A step of the strategy's arbiter half; what it returns replaces the sums. In ``ckks``
            mode the arbiter takes it (one more round), else the server.
        release_arguments : Mapping[str, Any], optional
            Its arguments.
        scale : float or Mapping[str, float], optional
            Largest absolute value that each party shall be able to send, of all floating summands
            or of some by name. The power of two at or above it decides limit and resolution of a
            ``masked`` or ``ckks`` sum (`limit_of`, `resolution_of`). It must be public: it goes to
            every party. By default 256 for float32; float64 has ``fraction_bits``.

        Returns
        -------
        Total
            Sums (or what was released) and public values.

        Raises
        ------
        PartyError
            If a party fails, does not answer, sends other summands than the first party or a
            value beyond the limit; or if there is no floating summand of a name in `scale`.
        ConfigError
            If a scale is no positive number.
        """
        mode = self.aggregation
        scales = private_sum.check_scales(scale)
        requests = self._requests(
            step,
            arguments,
            per_party,
            None,
            scales=scales,
            mode=mode,
            **{"n-parties": len(self.parties), "fraction-bits": self.fraction_bits},
        )

        def live() -> tuple[Payload, dict[str, Payload]]:
            replies, terms = self._round(step, requests, mode=mode)
            private_sum.check_terms(step, terms, shapes)
            public = {name: decode(replies[name], VALUES) for name in self.parties}
            del replies
            key = self._ckks_public if mode == "ckks" else None
            sent = list(terms.values())
            totals = private_sum.combine(sent, mode, self.fraction_bits, key, scales)
            del terms, sent
            more = dict(release_arguments or {})
            if mode == "ckks" and totals:
                return self._open(totals, release or "reveal", more), public
            if release is not None:
                totals = self._release.take(release, {"sums": totals, **more})
            return totals, public

        return Total(*self._record.once(step, requests, live))

    def loop(
        self, total: int | None, body: Callable[[int], Any], live: Mapping[str, Any] | None = None
    ) -> None:
        """Take many steps, with a snapshot every ``checkpoint_every`` of them.

        Without ``checkpoint_every`` this is a ``for`` loop. With it, what a step was answered is
        not kept. Where a party has lost what it remembered, or the server is resumed, server and
        parties go back to the last snapshot, make new keys and take the steps since then again.

        Parameters
        ----------
        total : int or None
            How many steps; None if `body` says when to stop.
        body : Callable[[int], Any]
            Takes a step, given its number from 0: any number of rounds. Ends the loop by
            returning something true. What it changes on the server must be in `live`, and it
            draws random numbers from `rng` or from what is in `live`: a step that is taken
            again must find what it found before.
        live : Mapping[str, Any], optional
            What `body` changes on the server, by name: PyTorch modules and optimisers, NumPy
            generators, dicts and lists (``result.history``), or objects with ``pack`` and
            ``unpack``. They are changed in place where the loop goes back. `rng` and what the
            ledger counts belong to a snapshot without being named. In a loop within a loop,
            name all of it in the outer one, whose snapshots are the only ones.

        Raises
        ------
        PartyError
            If a party fails or is lost for good, or again and again in one step.
        CodecError
            If something in `live` cannot be written down.
        ConfigError
            If it is an array: it could not be changed in place.

        Examples
        --------
        >>> def body(i):  # doctest: +SKIP
        ...     total = federation.sum("gradient", {"batch": i})
        ...     model["w"] -= 0.1 * total["gradient"]
        >>> federation.loop(1000, body, {"model": model})  # doctest: +SKIP
        """
        live = dict(live or {})
        for name, value in live.items():
            if isinstance(value, np.ndarray):
                raise ConfigError(
                    f"live[{name!r}] is an array, which a step would replace unseen: put it into a "
                    "dict, and the dict into live"
                )
            pack_object(name, value)  # says before the first step whether it can be done
        inside = self._record.transient  # another loop's body: that one's snapshots count
        if self._journal is not None and self.checkpoint_every is not None and not inside:
            every = self.checkpoint_every
            SnapshotLoop(self, self._journal, self._record, total, body, live, every).run()
            return
        for i in itertools.count() if total is None else range(total):
            if body(i):
                return

    def limit_of(self, dtype: Any = np.float64, scale: float | None = None) -> float:
        """Largest absolute value of a floating type that a party may send into a sum.

        Parameters
        ----------
        dtype : numpy dtype, default float64
            Type of the summand.
        scale : float, optional
            As in `sum`. The limit is at least that.

        Returns
        -------
        float
            Infinite in ``plain`` mode.
        """
        how = self.aggregation, len(self.parties), self.fraction_bits
        return private_sum.limit(*how, dtype, scale)

    def resolution_of(self, dtype: Any = np.float64, scale: float | None = None) -> float:
        """Step to which values are rounded on their way into a sum; parameters as of `limit_of`.

        Returns
        -------
        float
            A ``masked`` sum errs by half of it for each party, a ``ckks`` sum by one. 0 in
            ``plain`` mode. float32 totals have their own rounding on top.
        """
        how = self.aggregation, len(self.parties), self.fraction_bits
        return private_sum.resolution(*how, dtype, scale)

    def _open(self, totals: Payload, release: str, arguments: Mapping[str, Any]) -> Payload:
        """Send summed ciphertexts to the arbiter; what its release step returns comes back."""
        request = self._requests(release, arguments, None, [ARBITER], mode="call")
        self._record.course -= 1  # parties draw the same numbers in every mode
        request[ARBITER].update(encode(totals, SUMS))
        replies, _ = self._round(release, request, mode="open")
        return decode(replies[ARBITER], VALUES)

    def _requests(
        self,
        step: str,
        arguments: Mapping[str, Any] | None,
        per_party: Mapping[str, Mapping[str, Any]] | None,
        parties: Sequence[str] | None,
        scales: Mapping[str, float] | None = None,
        **envelope: Any,
    ) -> dict[str, RecordDict]:
        self._record.sequence += 1
        self._record.course += 1
        if self._record.course != self._record.sequence:  # snapshots, or messages sent again
            envelope["course"] = self._record.course
        requests: dict[str, RecordDict] = {}
        common = encode(arguments or {}, ARGUMENTS)  # once, however many parties get it
        shared: dict[int, RecordDict] = {}  # by the number that parties answered last
        for name in self.parties if parties is None else parties:
            if name not in self._nodes:
                raise ConfigError(f"no party {name!r} in this run; its parties are {self.parties}")
            mine, updates = (per_party or {}).get(name), self._updates.pop(name, None)
            after = self._record.answered[name]
            alike = not mine and not updates
            if alike and after in shared:
                requests[name] = filled(RecordDict(), entries(shared[after]))
                continue
            requests[name] = make_request(
                step,
                self._record.sequence,
                override(common, encode(mine, ARGUMENTS), ARGUMENTS) if mine else common,
                updates,
                scales,
                after=after,
                **self._marks(),
                **envelope,
            )
            if alike:
                shared[after] = requests[name]
        if per_party and len(requests) > 1:
            names = {name for party in requests for name in per_party.get(party, {})}
            own = announce_own(step, requests, names)
            for content in requests.values():
                envelope_of: Any = content[ENVELOPE]
                envelope_of.update(own)
        return requests
