"""``flwr-vertical keygen``: make a node's identity key, or show its public part."""

import argparse
import re
from pathlib import Path
from typing import Any

from flwr_vertical.crypto.identity import (
    generate_identity,
    identity_text,
    load_identity,
    public_identity,
    write_identity,
)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "keygen",
        help="make an identity key, so that other nodes can notice swapped keys",
        description="Writes a private identity key for one node and prints its public key, which "
        "the other nodes pin in their node configs.",
    )
    parser.add_argument("path", metavar="PATH", help="new file for the private key")
    parser.add_argument("--party", default="NAME", help="name of the party, for what is printed")
    parser.add_argument(
        "--show", action="store_true", help="make no key, print the public key of the file PATH"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Write the key, unless only its public part is asked for, and print what to pin."""
    party = options.party
    file = Path(options.path).expanduser().absolute()
    private = load_identity(file) if options.show else generate_identity()
    if not options.show:
        write_identity(file, private)
    public = identity_text(public_identity(private))
    # Names such as 'A+B' are no bare keys of TOML, in which node configs are read.
    pin = f"pin.{party}" if re.fullmatch(r"[A-Za-z0-9_-]+", party) else f'pin."{party}"'
    print(f"private key (stays on this node): {file}")
    print(f"public key (tell the others by a way you trust): {public}")
    print(f"node config of this node:         identity-key='{file}'")
    print(f"node config of the other parties: {pin}='{public}'")
    return 0
