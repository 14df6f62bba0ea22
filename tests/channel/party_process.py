"""A party in a process of its own: reads an offer from standard input and serves an echo."""

import json
import sys
import time

from flwr.app import Message

from flwr_vertical.channel.client import ChannelError, dial
from flwr_vertical.channel.offer import Offer


def answer(message):
    values = message.content.get("values")
    if values is not None and "sleep" in values:
        time.sleep(float(values["sleep"]))
    return Message(message.content, reply_to=message)


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
