"""The arbiter's half of products from ciphertexts: it has the secret key, and opens blinded sums.

The products are exact (`crypto.ckks_products` has the numerics, and what hides the rest). The
parties' encrypted columns pass through the server (`ciphertext`) and must not come to the
arbiter, who could open them. Its public key passes through the server, too (see `pair_keys`).
"""

from typing import Any

from flwr_vertical.errors import ProtocolError
from flwr_vertical.node import StepGroup, step
from flwr_vertical.products.pair_keys import MODE, Nonce, key_payload
from flwr_vertical.protocol import pins

# Under a prefix that the server may not write to (`pins.check_updates`).
_SECRET = "node.products.secret-key"
SIGNED_FOR = "product key"


class ProductKeySteps(StepGroup):
    """What an arbiter does for products: it makes the keys and opens the products."""

    @step
    def product_keys(self, nonce: Nonce) -> dict[str, Any]:
        """Make the keys of this run; the secret one stays here."""
        from flwr_vertical.crypto.ckks_products import generate_product_keys

        keys = generate_product_keys()
        self.state[_SECRET] = keys.secret
        config = self.party.services.node_config
        node = pins.NodeIdentity("arbiter", "arbiter", MODE, 0, config)
        payload = key_payload(SIGNED_FOR, keys.public, nonce)
        return {"public": keys.public, **pins.endorse(node, payload)}

    @step
    def open_blinded(self, products: list[bytes]) -> dict[str, Any]:
        """Open products of `ckks_products.blind`: ``opened`` (n_products,), modulo a prime."""
        from flwr_vertical.crypto.ckks_products import open_blinded

        return {"opened": open_blinded(self._secret, products)}

    @step
    def forget_product_key(self) -> None:
        """Forget the key: what was encrypted under it can be opened by nobody any more."""
        self.state.pop(_SECRET, None)

    @property
    def _secret(self) -> bytes:
        if _SECRET not in self.state:
            raise ProtocolError("the arbiter has no key for products: 'product_keys' comes first")
        return bytes(self.state[_SECRET])
