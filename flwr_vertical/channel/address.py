"""Where the endpoint listens, and where parties are told to dial."""

import ipaddress

from flwr_vertical.errors import ConfigError


def split_address(text: str, key: str, *, default_port: int | None = None) -> tuple[str, int]:
    """Split ``host:port`` (``[host]:port`` for IPv6)."""
    host, colon, port = text.strip().rpartition(":")
    if default_port is not None and (not colon or text.strip().endswith("]")):
        host, port = text.strip(), str(default_port)
    bare = host.removeprefix("[").removesuffix("]")
    try:
        number = int(port)
        if not bare or not 0 <= number < 1 << 16 or (":" in bare and not host.startswith("[")):
            raise ValueError
        if any(c.isspace() or c in "/@" for c in bare):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{key} = {text!r} is no address; expected 'host:port', as in '0.0.0.0:7070' "
            "or '[::1]:7070'"
        ) from None
    return bare, number


def join_address(host: str, port: int) -> str:
    """Write an address as gRPC dials it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def advertised(bind_host: str, port: int, configured: str) -> tuple[str, int]:
    """Return the host and port that parties dial."""
    if configured:
        host, dialled = split_address(configured, "channel-address", default_port=port)
        return host, dialled or port
    if bind_host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"channel-bind = '{join_address(bind_host, port)}' listens on every interface, so it "
            "does not tell where parties can dial; set channel-address='HOST:PORT' in the run "
            "config to the address at which they reach this machine"
        )
    return bind_host, port
