"""A party in a process of its own: reads an offer from standard input and serves an echo."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "kit"))

from channel_runs import answer

from flwr_vertical.channel.client import ChannelError, dial
from flwr_vertical.channel.invitation import Offer


def main():
    told = json.loads(sys.stdin.readline())
    try:
        stream = dial(Offer(**told["offer"]), told["node_id"])
        print("open", flush=True)
        stream.serve(answer)
        print("closed", flush=True)
    except ChannelError as error:
        print(f"error: {error}", flush=True)


if __name__ == "__main__":
    main()
