"""What a node says when it is greeted: who it is, and the keys that it makes for the run."""

import secrets
from collections.abc import Mapping
from typing import Any

from flwr.app import Context

from flwr_vertical.crypto.ckks_context import generate_keys
from flwr_vertical.crypto.masks import generate_keypair
from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config import check_node_config
from flwr_vertical.node.node_data import RUN, SECRET, SEED, NodeData
from flwr_vertical.node.policy_check import Admitted, NodeTypes
from flwr_vertical.node.state import State
from flwr_vertical.node.steps import node_keys_of, unrepeatable_steps
from flwr_vertical.node.storage import Storage
from flwr_vertical.protocol import pins, private_sum
from flwr_vertical.version import __version__


class Introduction:
    """Answers greetings on behalf of a node; secrets stay in the node's state."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def hello(
        self,
        context: Context,
        state: State,
        envelope: Any,
        admitted: Admitted,
        cache: dict[str, Any],
    ) -> dict[str, Any]:
        """Say who is here and make the keys of this run; secrets stay in the node's state."""
        role = self._storage.role(context)
        name = self._storage.party_name(context) if role == "party" else "arbiter"
        mode = str(envelope["mode"])
        self._check_protocol(context, envelope, admitted.types)
        state["node.name"], state[private_sum.MODE] = name, mode
        state[SEED], state[SECRET] = str(envelope.get("seed", 0)), secrets.token_bytes(32)
        public_keys: dict[str, bytes] = {}
        if role == "arbiter" and mode == "ckks":
            keys = generate_keys()
            state[private_sum.CKKS_SECRET] = keys.secret
            public_keys["ckks-public"] = keys.public
        elif role == "party" and mode == "masked":
            private, public = generate_keypair()
            state[private_sum.PRIVATE_KEY] = private
            public_keys["public-key"] = public
        identity = pins.introduce(self.identified(context, state), public_keys)
        types = admitted.types
        who = self._storage.in_words(context)
        check_node_config(who, context.node_config, node_keys_of(*types.of(role)))
        self._refuse_to_replace(who, context)
        if not str(state.get(RUN, "")):  # else told before the version of the data was noted
            self._storage.begin(context)
        if role == "party":
            ledger = NodeData(self._storage, context, state, cache).ledger()
            if ledger is not None:
                ledger.begin(*described(context))
        once = sorted(self.unrepeatable(context, types))
        told: dict[str, Any] = {"party": name, "role": role, "version": __version__}
        if once:
            told["unrepeatable"] = once
        return {**told, **public_keys, **identity}

    def new_keys(self, context: Context, state: State) -> dict[str, Any]:
        """Replace the key that masks sums: what was sent under the old one may be sent again."""
        told = {"party": str(state["node.name"]), "role": self._storage.role(context)}
        if private_sum.PRIVATE_KEY not in state:
            return told
        private, public = generate_keypair()
        state[private_sum.PRIVATE_KEY] = private
        # The server hands them on once more, and only once. Whose they are stays the same.
        renewed = private_sum.PEERS, private_sum.PUBLIC_KEYS, private_sum.NONCE, pins.SIGNATURES
        for key in renewed:
            state.pop(key, None)
        keys = {"public-key": public}
        return {**told, **keys, **pins.introduce(self.identified(context, state), keys)}

    def identified(self, context: Context, state: State) -> pins.NodeIdentity:
        """Return the node as far as identities go."""
        return pins.NodeIdentity(
            name=str(state["node.name"]),
            role=self._storage.role(context),
            mode=str(state[private_sum.MODE]),
            # Greetings are signed for the run of Flower that began; one that goes on has another.
            run_id=int(state.get(RUN, context.run_id)),
            config=context.node_config,
        )

    def unrepeatable(self, context: Context, types: NodeTypes) -> frozenset[str]:
        """Return the names of its steps that are not repeatable."""
        return unrepeatable_steps(*types.of(self._storage.role(context)))

    def _check_protocol(self, context: Context, envelope: Any, types: NodeTypes) -> None:
        """Refuse a server that means another protocol by the strategy's name."""
        told = str(envelope.get("protocol", ""))
        if told and types.protocol is not None and types.protocol.of_strategy != told:
            raise ConfigError(
                f"{self._storage.in_words(context)} has another protocol of this strategy than the "
                f"server: it has flwr-vertical {__version__}, the server "
                f"{str(envelope.get('server-version', 'an unknown version'))[:40]}. Install the "
                "same version everywhere, and give all the same settings; nothing has left"
            )

    def _refuse_to_replace(self, who: str, context: Context) -> None:
        """Refuse a run that would put its result in the place of an earlier one's."""
        if (earlier := self._storage.earlier_result(context)) is not None:
            raise ConfigError(
                f"{who} has the result of an earlier run of this name, {earlier}, which this run "
                "would replace: give the run another run-name, or have that party move the file"
            )


def described(context: Context) -> tuple[str, str, Mapping[str, Any]]:
    """Return name, strategy and settings of a run, for the ledger."""
    config = context.run_config
    name = str(config.get("run-name") or context.run_id)
    return name, str(config.get("strategy", "")), config
