"""`ChannelClientApp`: a Flower ``ClientApp`` that can be served over a live channel."""

import threading

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from flwr_vertical.channel import background, invitation
from flwr_vertical.channel.client import ChannelError, Stream, dial
from flwr_vertical.channel.invitation import LOST as LOST_STATUS
from flwr_vertical.channel.mailbox import LOST, RAISED
from flwr_vertical.log import logger

# On the Simulation Runtime several nodes share a process, and an app need not expect two calls.
_one_at_a_time = threading.RLock()


class ChannelClientApp(ClientApp):
    """A ``ClientApp`` that also answers messages which come over a channel.

    Any app can use it in place of ``ClientApp``; its handlers, mods and state stay as they are.
    For a message of the type ``query.channel`` it dials the server's endpoint and serves what comes
    from there, each message through the same handlers, until the server says goodbye. Then it
    returns an ordinary reply, so that Flower keeps ``context.state``.

    On the Deployment Runtime it holds the ordinary message as long as that. In a Ray worker (the
    Simulation Runtime), where a held message would starve the other nodes, a thread serves the
    channel; its state is found by the node's next ordinary message.

    Parameters
    ----------
    *args, **kwargs
        As for ``ClientApp``.

    Examples
    --------
    >>> app = ChannelClientApp()
    >>> @app.query("double")
    ... def double(message, context):
    ...     value = message.content["values"]["x"]
    ...     content = RecordDict({"values": ConfigRecord({"x": 2 * value})})
    ...     return Message(content, reply_to=message)
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """Handle a message, or open a channel and serve it."""
        apart = background.in_ray_worker()
        if apart:
            with _one_at_a_time:
                background.restore(context)
                if message.metadata.message_type != invitation.MESSAGE_TYPE:
                    return super().__call__(message, context)
        elif message.metadata.message_type != invitation.MESSAGE_TYPE:
            return super().__call__(message, context)

        try:
            stream = dial(invitation.Offer.read(message.content), context.node_id)
        except (ChannelError, ValueError) as error:
            logger.warning("%s", error)
            return Message(
                invitation.answer_records(invitation.UNREACHABLE, str(error)), reply_to=message
            )
        logger.info("a channel to the server is open")
        if apart:
            name = f"channel-service-{context.node_id}"
            threading.Thread(
                target=self._serve_apart, args=(stream, context), name=name, daemon=True
            ).start()
            return Message(invitation.answer_records(invitation.DETACHED), reply_to=message)
        try:
            stream.serve(lambda inner: self._answer(inner, context))
        except ChannelError as error:
            logger.warning("%s", error)
            return Message(invitation.answer_records(LOST_STATUS, str(error)), reply_to=message)
        return Message(invitation.answer_records(invitation.CLOSED), reply_to=message)

    def _answer(self, message: Message, context: Context) -> Message:
        """Handle one message of a channel as a SuperNode would."""
        try:
            return super().__call__(message, context)
        except Exception as error:
            logger.exception("the app raised an exception")
            return _error_reply(message, RAISED, error)
        except SystemExit as error:  # would end the process of the other handlers, too
            return _error_reply(message, LOST, error)

    def _serve_apart(self, stream: Stream, context: Context) -> None:
        def handle(message: Message) -> Message:
            with _one_at_a_time:
                return self._answer(message, context)

        def finish(keep_state: bool) -> None:
            if keep_state:
                background.commit(context)

        try:
            stream.serve(handle, finish)
        except ChannelError as error:
            logger.warning("%s", error)
            background.commit(context)  # the server may open another channel


def _error_reply(message: Message, code: int, error: BaseException) -> Message:
    return Message(Error(code, f"{type(error).__name__}: {error}"), reply_to=message)
