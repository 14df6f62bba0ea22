"""Identities of nodes, and who pins whom."""

from flwr_vertical.crypto.identity import (
    generate_identity,
    identity_text,
    public_identity,
    write_identity,
)


def identities(folder, names):
    """An identity key file and its public text for everybody."""
    found = {}
    for name in names:
        write_identity(path := folder / f"{name}.pem", private := generate_identity())
        found[name] = str(path), identity_text(public_identity(private))
    return found


def pins(people, of=None):
    """Keys of a node config that pin everybody, or everybody but the node itself."""
    return {f"pin.{name}": text for name, (_, text) in people.items() if name != of}
