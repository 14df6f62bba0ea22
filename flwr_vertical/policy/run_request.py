"""What a run asks of a node, and which of it the node's policy refuses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_vertical.errors import PolicyError
from flwr_vertical.policy.record import ANY, Policy, allows, key_of, text_of


@dataclass(frozen=True)
class RunRequest:
    """What is known of a run before it begins."""

    strategy: str = ""  # Its name, or ``module:Class``; "" where it is not known
    aggregation: str = ""  # As in the run config; "" where not known
    alignment: str = ""  # As in the run config; "" where not known
    n_parties: int | None = None  # How many parties take part, if that is known
    # The column that this node is asked to hand over as labels; "" for none
    label_column: str = ""
    exchanges: tuple[str, ...] = ()  # Exchanges that tell more than the method's default one
    epsilon: float | None = None  # What privacy noise may spend on a column
    stages: tuple[str, ...] = ()  # Of a pipeline, the strategies of its stages

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        party: str,
        n_parties: int | None = None,
        exchanges: Iterable[str] = (),
        epsilon: float | None = None,
    ) -> "RunRequest":
        """Read it from a run config."""
        if n_parties is None:
            n_parties = len(_names(config.get("parties"))) or None
        holder = str(config.get("label-holder", ""))
        return cls(
            strategy=str(config.get("strategy", "")),
            aggregation=str(config.get("aggregation", "")),
            alignment=str(config.get("alignment", "")),
            n_parties=n_parties,
            label_column=str(config.get("label-column", "")) if holder == party else "",
            exchanges=tuple(exchanges),
            epsilon=epsilon,
        )


@dataclass(frozen=True)
class Refusal:
    """A key of a policy that forbids something a run asks for."""

    key: str  # As in a node config, ``policy.labels``
    asked: str  # In words
    allowed: str  # In words
    needed: Any  # A value of the key that would allow it

    @property
    def line(self) -> str:
        """What a node config would have, ready to paste."""
        return f"{self.key}={text_of(self.needed)}"


def _names(value: Any) -> list[str]:
    """Return names of parties, given as one text with commas or as a list of texts."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        return []
    return [name for name in listed if isinstance(name, str) and name.strip()]


def refusals(policy: Policy, request: RunRequest) -> list[Refusal]:
    """Return what a policy forbids of a run, in the order in which a run meets it."""
    found: list[Refusal] = []

    def forbid(name: str, asked: str, needed: Any) -> None:
        found.append(Refusal(key_of(name), asked, text_of(getattr(policy, name)), needed))

    def check(name: str, what: str, asked: str) -> None:
        names = getattr(policy, name)
        if asked and not allows(names, asked):
            forbid(name, f"{what} {asked!r}", (*names, asked))

    for field, what, asked in (
        ("strategies", "strategy", request.strategy),
        *(("strategies", "strategy", name) for name in request.stages),
        ("alignments", "alignment", request.alignment),
    ):
        # A class is imported by its module, which runs that module: so it is allowed by itself.
        # 'any' stands for all names of methods, never for all code.
        if ":" not in asked:
            check(field, what, asked)
        elif asked not in policy.modules:
            forbid("modules", f"{what} {asked!r}", (*policy.modules, asked))
    check("aggregations", "aggregation", request.aggregation)
    for exchange in request.exchanges:
        check("exchanges", "exchange", exchange)
    if request.label_column and request.label_column != policy.labels:
        forbid("labels", f"its column {request.label_column!r} as labels", request.label_column)
    if request.n_parties is not None and request.n_parties < policy.min_parties:
        parties = "party" if request.n_parties == 1 else "parties"
        forbid("min_parties", f"a run of {request.n_parties} {parties}", request.n_parties)
    most = policy.max_epsilon
    if request.epsilon is not None and most is not None and request.epsilon > most:
        forbid("max_epsilon", f"epsilon {request.epsilon:g} on a column", request.epsilon)
    return _together(found)


def check_request(who: str, policy: Policy, request: RunRequest) -> None:
    """Raise if a policy forbids a run."""
    found = refusals(policy, request)
    if not found:
        return
    first, *more = found
    others = f"; {', '.join(r.key for r in more)} forbid it as well" if more else ""
    raise PolicyError(
        who,
        first.key,
        first.asked,
        first.allowed,
        f"its owner would have to set {' '.join(r.line for r in found)}{others}",
    )


def needed_keys(request: RunRequest, policy: Policy | None = None) -> dict[str, Any]:
    """Return keys of a node config by which a node would take part in a run."""
    return {r.key: r.needed for r in refusals(policy or Policy(), request)}


def _together(found: list[Refusal]) -> list[Refusal]:
    """Put what the same list lacks into one refusal, so that one line allows all of it."""
    merged: dict[str, Refusal] = {}
    for one in found:
        before = merged.get(one.key)
        if before is None:
            merged[one.key] = one
            continue
        names = tuple(dict.fromkeys((*before.needed, *one.needed)))
        merged[one.key] = Refusal(one.key, f"{before.asked}, {one.asked}", one.allowed, names)
    return list(merged.values())


__all__ = ["ANY", "Refusal", "RunRequest", "check_request", "needed_keys", "refusals"]
