"""A network between party and server that can be cut, and that can swallow what is sent."""

import contextlib
import socket
import threading


class Proxy:
    """Forwards TCP connections on loopback until it is cut."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.target = host, int(port)
        self.sockets = []
        self.connections = 0
        self.open = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.mute = threading.Event()  # nothing passes from party to server any more
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                incoming, _ = self.listener.accept()
            except OSError:
                return
            if not self.open:
                incoming.close()
                continue
            try:
                outgoing = socket.create_connection(self.target)
            except OSError:
                incoming.close()
                continue
            self.connections += 1
            self.sockets += [incoming, outgoing]
            for pair in ((incoming, outgoing, self.mute), (outgoing, incoming, None)):
                threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def pump(self, source, sink, gate):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if gate is None or not gate.is_set():
                    sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Break all connections that there are; return how many ends they had."""
        sockets, self.sockets = self.sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        return len(sockets)

    def close(self):
        self.open = False
        self.listener.close()
        self.cut()
